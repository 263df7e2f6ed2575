"""The server step, which a Flower strategy takes: from the aggregate, from single replies, or with noise."""
