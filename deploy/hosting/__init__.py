"""`cohort server`: a server for real devices, with its certificates, clients and runs.

All files of a server lie in one folder. Devices reach one port of the SuperLink (the Fleet API: gRPC over
TLS, for registered keys only). The other port lets its users register clients and submit runs: it answers on
this machine only, for `cohort server` and `flwr`.
"""
