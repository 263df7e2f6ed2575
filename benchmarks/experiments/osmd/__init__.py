"""The experiments of the OSMD paper: those of its appendices F and G, bounds, and one on personal models.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback":
a first version, and a later one with Liu, Zhang, Zhou and Chen.
"""
