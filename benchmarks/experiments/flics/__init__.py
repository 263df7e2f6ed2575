"""The experiments of the FLICS paper.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints".
"""
