"""OSMD, Adaptive-OSMD, Adaptive-Doubling-OSMD, and OSMD for personalised objectives.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
Algorithms 1, 4 and 5, and appendix H.1 (the numbers are those of the paper's first version).
"""
