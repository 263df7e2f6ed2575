"""The clients of a run: identities and reports, and what the operator declares about them."""
