"""A method of an experiment: a selector by its name, with its settings."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from strategies.numerics.arrays import Floats
from strategies.selectors import Selector, create

OWN_DRAWS: dict[str, Any] = {"design": "own"}
"""With these settings, `forecast` draws as it did before balanced draws became its default."""


class Method(NamedTuple):
    """The name of a selector, and keyword arguments for it."""

    selector: str
    settings: Mapping[str, Any] = {}

    def made(self, sizes: Floats | int, k: int, seed: int, num_rounds: int | None = None) -> Selector:
        """Return a new selector of K = `k` clients; `sizes` are the data sizes (M,), or M equal clients."""
        more: dict[str, Any] = {**self.settings, "num_rounds": num_rounds, "seed": seed}
        if isinstance(sizes, int):
            return create(self.selector, sizes, clients_per_round=k, **more)
        return create(self.selector, sizes.size, client_sizes=sizes, clients_per_round=k, **more)
