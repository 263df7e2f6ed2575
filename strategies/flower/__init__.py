"""Everything that touches Flower: grids, messages, arrays on the wire, attendance, polling."""
