"""TLS certificates, client keys, and checks whether a server can be reached."""
