"""`cohort server`: a server for real devices, its certificates, its clients, its runs.

What is the server's lies in one folder. The SuperLink shows devices one port (the Fleet API: gRPC over TLS,
for registered keys only). Whoever reaches the other one may register clients and submit runs, so that one
answers on this machine only, where `cohort server` and `flwr` use it.
"""
