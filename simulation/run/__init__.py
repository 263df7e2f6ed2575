"""The parts of a simulation, of which `Simulator` is made. Each has a state of its own."""
