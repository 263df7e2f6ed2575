"""FLICS with known groups, FLICS with groups that clients keep private, and the baseline with fixed quotas.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints".
"""
