"""The experiments of the DELTA paper.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023). The
paper's n of m clients a round are K of M here. Its FedAvg is the selector `uniform` or `md`, its IS `fed-is`.
"""
