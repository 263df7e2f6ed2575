"""The experiments of the Power-of-Choice paper.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022). The
paper's m of K clients a round are K of M here, and its ``rand`` is the selector `md`.
"""
