"""The gate: it accepts and decrypts the connections of devices, and checks their frames before gRPC does."""
