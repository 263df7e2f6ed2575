"""power_of_choice."""
