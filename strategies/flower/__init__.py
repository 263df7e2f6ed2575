"""Messages to and from Flower: exchanges, arrays in messages, attendance, questions for the status, polls."""
