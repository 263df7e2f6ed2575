"""FLICS for groups that the server knows or does not know, and the paper's baseline of fixed quotas.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints".
"""
