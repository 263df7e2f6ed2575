"""The server step: a Flower strategy takes it, from the aggregate, from single replies, or with noise."""
