"""The parts of a run on Flower's grid. `SelectionStrategy` makes and connects them."""
