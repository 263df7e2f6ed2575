"""Client updates a second, and what one costs: this project's simulators beside others, in one run."""
