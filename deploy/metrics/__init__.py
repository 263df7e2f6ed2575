"""Offers numbers about a server and its runs to Prometheus, and says whether the server is ready."""
