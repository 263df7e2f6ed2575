"""Multilayer perceptrons in torch."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from .network import Network


class MLP(Network):
    """Hidden layers of ReLU units, then one output per class.

    The parameters are "0.weight" (out, in), "0.bias", "2.weight", ... ``hidden`` are the units of each hidden
    layer, >= 1. For images of 784 pixels, (64, 30) gives the network of the Power-of-Choice paper (appendix
    F) without its dropout.
    """

    def __init__(self, dataset: str = "digits", *, hidden: Sequence[int] = (32,), **data: str) -> None:
        super().__init__(dataset, **data)
        if not all(units >= 1 for units in hidden):
            raise ValueError(f"hidden = {tuple(hidden)}: must be whole numbers >= 1")
        self.sizes = (self.data.num_features, *hidden, self.data.num_classes)

    def layers(self) -> nn.Sequential:
        modules: list[nn.Module] = []
        for fan_in, fan_out in pairwise(self.sizes):
            modules += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*modules[:-1])
