"""Everything that touches Flower's messages: sending, waiting, decoding, attendance, polls and traffic."""
