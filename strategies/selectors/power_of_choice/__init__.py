"""Power-of-Choice in four variants, and AFL: all select by losses, and take the plain mean.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022); Goetz
et al., "Active Federated Learning" (2019).
"""
