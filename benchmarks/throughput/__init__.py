"""Client updates per second and CPU time per update: this project's simulators beside others, in one run."""
