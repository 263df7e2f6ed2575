"""LEAF's network for Shakespeare, in torch: it predicts the next character of a text."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from .network import Network

_EMBEDDING, _HIDDEN = 8, 256


class _Embed(nn.Embedding):
    """An embedding whose input, the numbers of the characters, arrives as float32."""

    def forward(self, numbers: Tensor) -> Tensor:
        """Map (n, T) to (n, T, embedding)."""
        return super().forward(numbers.long())


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
    """An embedding of 8 numbers per character, two layers of 256 LSTM units, and one output per character.

    The network of LEAF (Caldas et al. 2018), which is like that of McMahan et al. 2017. Each input is a row
    of numbers, one per character. A data set that does not consist of characters is refused.
    """

    def __init__(
        self, dataset: str = "shakespeare", *, partition: str = "skewed", data_dir: str = ""
    ) -> None:
        super().__init__(dataset, partition=partition, data_dir=data_dir)
        if self.data.encoding != "characters":
            raise ValueError(f"data set = {dataset!r}: must consist of characters to predict the next one")

    def layers(self) -> nn.Sequential:
        num_characters = self.data.num_classes
        return nn.Sequential(
            _Embed(num_characters, _EMBEDDING),
            LSTM(_EMBEDDING, _HIDDEN),
            LSTM(_HIDDEN, _HIDDEN),
            _Last(),
            nn.Linear(_HIDDEN, num_characters),
        )
