"""DELTA and its practical form, and the baselines of its paper: by norms (FedIS), and by clusters of norms.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023).
"""
