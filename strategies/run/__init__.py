"""The parts of a run on Flower's grid, of which `SelectionStrategy` is made. Each has a state of its own."""
