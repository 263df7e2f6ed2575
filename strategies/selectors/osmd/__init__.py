"""OSMD, Adaptive-OSMD and Adaptive-Doubling-OSMD.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithms 1, 4 and 5.
"""
