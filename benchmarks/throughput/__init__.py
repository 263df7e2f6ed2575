"""Client updates per second and CPU time per update of this project's simulators and other simulators."""
