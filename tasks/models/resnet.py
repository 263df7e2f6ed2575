"""ResNet-18 in torch, with group norm in place of batch norm."""

import torch
from torch import nn

from .network import Network

_GROUPS = 2
_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels, and the stride of the stage's first block


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, channels)


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut around them (He et al. 2016, Figure 2).

    If the input and the output differ in shape, the shortcut is a 1 x 1 convolution (a projection).
    """

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = _norm(channels)
        self.shortcut = nn.Sequential()  # the identity, where the shapes agree
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), _norm(channels))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (n, inputs, h, w) to (n, channels, h / stride, w / stride)."""
        hidden = torch.relu(self.norm1(self.conv1(images)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


class ResNet18(Network):
    """ResNet-18 for small images, such as 32 x 32 pixels; inputs are rows of pixels (n, channels * h * w).

    The first convolution has 3 x 3 filters, and no pooling follows it, as is usual for small images. Each
    group norm has two groups, as in Reddi et al. 2021, whose federated CIFAR-100 the FLICS paper uses
    (section IV-A). The running statistics of batch norm would not be averaged. A data set without images is
    refused.
    """

    def __init__(self, dataset: str = "cifar100", **data: str) -> None:
        super().__init__(dataset, **data)
        if len(self.data.shape) != 3:
            raise ValueError(f"data set = {dataset!r}: must have images for ResNet-18")

    def layers(self) -> nn.Sequential:
        channels = _STAGES[0][0]
        modules: list[nn.Module] = [
            nn.Unflatten(1, self.data.shape),
            nn.Conv2d(self.data.shape[0], channels, 3, padding=1, bias=False),
            _norm(channels),
            nn.ReLU(),
        ]
        for wider, stride in _STAGES:
            modules += [Block(channels, wider, stride), Block(wider, wider, 1)]
            channels = wider
        modules += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, self.data.num_classes)]
        return nn.Sequential(*modules)
