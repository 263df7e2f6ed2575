"""What the service does beyond Flower's handlers, one file per duty; `duties` holds what they share."""
