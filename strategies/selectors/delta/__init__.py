"""DELTA, and its paper's baselines FedIS and cluster-based IS. DELTA and FedIS also have a practical form.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023).
"""
