"""LEAF's network for Shakespeare, in torch: it predicts the next character of a text."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..leaf import LENGTH
from .network import Network

_EMBEDDING = 8


class _Embed(nn.Embedding):
    """An embedding of the last ``length`` characters, whose numbers arrive as float32."""

    def __init__(self, characters: int, width: int, length: int) -> None:
        super().__init__(characters, width)
        self._length = length

    def forward(self, numbers: Tensor) -> Tensor:
        """Map (n, T) to (n, min(T, length), embedding)."""
        return super().forward(numbers[:, -self._length :].long())


class LSTM(nn.Module):
    """One layer of long short-term memory, written out, since `torch.func.vmap` cannot handle torch's LSTM.

    The rows of ``gates`` are those of the input gate, the forget gate, the cell and the output gate. As in
    TensorFlow's cell, which LEAF uses, there is one bias vector (torch's LSTM has two), and 1 is added to the
    forget gate's part of this vector.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self._inputs, self._hidden = inputs, hidden
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)

    def forward(self, sequence: Tensor) -> Tensor:
        """Map (n, T, inputs) to (n, T, hidden)."""
        weight = self.gates.weight
        ahead = linear(sequence, weight[:, : self._inputs], self.gates.bias)  # for all steps at once
        hidden = cell = sequence.new_zeros(len(sequence), self._hidden)
        outputs = []
        for step in range(sequence.shape[1]):
            gates = ahead[:, step] + linear(hidden, weight[:, self._inputs :])
            enter, forget, new, out = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget + 1) * cell + torch.sigmoid(enter) * torch.tanh(new)
            hidden = torch.sigmoid(out) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)


class _Last(nn.Module):
    """The output after the last character."""

    def forward(self, sequence: Tensor) -> Tensor:
        """Map (n, T, hidden) to (n, hidden)."""
        return sequence[:, -1]


class NextCharacter(Network):
    """An embedding of 8 numbers per character, layers of LSTM units, and one output per character.

    By default, this is the network of LEAF (Caldas et al. 2018), which is like that of McMahan et al. 2017:
    ``depth`` = 2 layers of ``hidden`` = 256 units, which read all 80 characters. With a smaller ``length``
    they read only the last so many characters of each text. All three are >= 1. Each input is a row of
    numbers, one per character. A data set that does not consist of characters is refused.
    """

    def __init__(
        self,
        dataset: str = "shakespeare",
        *,
        hidden: int = 256,
        depth: int = 2,
        length: int = LENGTH,
        **data: str,
    ) -> None:
        super().__init__(dataset, **data)
        for name, value in (("hidden", hidden), ("depth", depth), ("length", length)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be a whole number >= 1")
        self._hidden, self._depth, self._length = hidden, depth, length
        if self.data.encoding != "characters":
            raise ValueError(f"data set = {dataset!r}: must consist of characters to predict the next one")

    def layers(self) -> nn.Sequential:
        num_characters = self.data.num_classes
        return nn.Sequential(
            _Embed(num_characters, _EMBEDDING, self._length),
            *(LSTM(width, self._hidden) for width in (_EMBEDDING, *[self._hidden] * (self._depth - 1))),
            _Last(),
            nn.Linear(self._hidden, num_characters),
        )
