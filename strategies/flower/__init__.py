"""The exchange of messages with Flower: grids, messages, arrays in messages, attendance and polls."""
