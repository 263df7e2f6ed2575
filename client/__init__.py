"""The ClientApp: answers polls, trains and evaluates."""
