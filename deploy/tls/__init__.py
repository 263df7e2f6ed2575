"""TLS certificates and client keys, and checks that a server can be reached."""
