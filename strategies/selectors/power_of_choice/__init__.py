"""Power-of-Choice in four variants, and AFL. All of them select by losses, and are biased.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022); Goetz
et al., "Active Federated Learning" (2019).
"""
