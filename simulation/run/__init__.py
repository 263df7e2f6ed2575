"""The parts of a simulation. `Simulator` makes and connects them."""
