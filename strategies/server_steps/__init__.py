"""The server step: a Flower strategy steps from the aggregate, from single replies, or with noise."""
