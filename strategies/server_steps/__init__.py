"""server_steps."""
