"""How long clients take to reply, learned from the server's clock, and draws that take this into account."""
