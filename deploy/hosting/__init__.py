"""`cohort server`: a server for real devices, with its certificates, clients and runs.

The server's SuperLink listens on two ports. Devices reach the Fleet API (gRPC over TLS), which serves
registered clients and devices with an invitation. The control API registers clients and accepts runs. It can
be reached only from this machine, by `cohort server` and `flwr`.
"""
