"""The ClientApp: answers polls, trains, evaluates."""
