"""The exchange of messages with Flower: exchanges, messages, arrays in messages, attendance and polls."""
