"""A selector of your own in a Flower app."""
