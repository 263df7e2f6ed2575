"""The ClientApp: train, evaluate, say who is there."""
