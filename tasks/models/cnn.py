"""Small convolutional networks in torch, one for each shape of images."""

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from .network import Network


def _handwriting(num_classes: int) -> list[nn.Module]:
    """Return the network of McMahan et al. 2017, section 3, for 28 x 28 grey pixels.

    LEAF's network has 2,048 hidden units instead of 512.
    """
    return [
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, num_classes),
    ]


def _objects(num_classes: int) -> list[nn.Module]:
    """Return the network of the Power-of-Choice paper, appendix F, for 32 x 32 colour pixels.

    The paper does not give the numbers of filters. They are 6 and 16, as in LeNet.
    """
    modules: list[nn.Module] = [
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    units = (16 * 5 * 5, 120, 100, 84, 50)
    for fan_in, fan_out in pairwise(units):
        modules += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return [*modules, nn.Linear(units[-1], num_classes)]


def _faces(num_classes: int) -> list[nn.Module]:
    """Return LEAF's network for CelebA, for 84 x 84 colour pixels.

    Group norm replaces LEAF's batch norm, as Hsieh et al. 2020 recommend: its running statistics are no
    parameters, so they would not be averaged, and those of a client with one class would not fit other
    clients.
    """
    modules: list[nn.Module] = []
    for channels in (3, 32, 32, 32):
        modules += [nn.Conv2d(channels, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.MaxPool2d(2), nn.ReLU()]
    return [*modules, nn.Flatten(), nn.Linear(32 * 5 * 5, num_classes)]


class _Centred(nn.Module):
    """Maps pixels from [0, 1] to [-2, 2], so that few steps teach much."""

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, channels, height, width) to the same shape."""
        return 4 * images - 2


def _small(shape: tuple[int, ...], num_classes: int) -> list[nn.Module]:
    """Return a network that trains fast on a CPU: 38,570 parameters for 32 x 32 colour pixels."""
    channels, height, width = shape
    return [
        _Centred(),
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * ((height + 3) // 8) * ((width + 3) // 8), 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    ]


_LAYERS: dict[tuple[int, ...], Callable[[int], list[nn.Module]]] = {
    (1, 28, 28): _handwriting,
    (3, 32, 32): _objects,
    (3, 84, 84): _faces,
}


class CNN(Network):
    """Convolutions, then dense layers; inputs are rows of pixels (n, channels * height * width).

    With ``small=True``, they are two convolutions with stride 2, of 16 and 32 filters, and 64 hidden units.
    A data set without images of a known shape is refused, such as "digits", whose images are too small.
    """

    def __init__(self, dataset: str = "mnist", *, small: bool = False, **data: str) -> None:
        super().__init__(dataset, **data)
        self._small = small
        if self.data.shape not in _LAYERS:
            raise ValueError(f"data set = {dataset!r}: has no convolutional network")

    def layers(self) -> nn.Sequential:
        # Layer "0" turns rows of pixels back into images; it has no parameters.
        shape, num_classes = self.data.shape, self.data.num_classes
        modules = _small(shape, num_classes) if self._small else _LAYERS[shape](num_classes)
        return nn.Sequential(nn.Unflatten(1, shape), *modules)
