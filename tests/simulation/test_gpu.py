"""What trains large models on a GPU computes the same on the CPU. (`test_resnet.py` needs a GPU.)"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from simulation.kernels.base import StackedUpdates, splitter
from simulation.kernels.gpu import InputGradients, UpdatesOnGPU


def test_updates_in_a_tensor_are_those_in_an_array():
    arrays = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(4, np.float32)}
    rows = np.random.default_rng(0).standard_normal((4, 10), dtype=np.float32)
    rows[1, 3], rows[2] = np.nan, np.float32(1e20)
    ours = UpdatesOnGPU(torch.from_numpy(rows), arrays, splitter(arrays))
    theirs = StackedUpdates(rows, arrays, splitter(arrays))
    np.testing.assert_allclose(ours.norms(), theirs.norms(), rtol=1e-6)
    assert not np.isfinite(ours.norms()[1:3]).any()
    for coefficients in ([0.5, 0.0, 0.0, 2.0], [0.0] * 4, [1.0, 0.25, 2.0, 3.0]):
        one, other = (each.combined(np.array(coefficients)) for each in (ours, theirs))
        for key in arrays:
            np.testing.assert_allclose(one[key], other[key], rtol=1e-5, atol=1e-6)
            assert one[key].shape == arrays[key].shape
    for key, array in theirs.model(3).items():
        assert np.array_equal(ours.model(3)[key], array)


class Asked(TorchDispatchMode):
    """Records whether each convolution's backward pass is asked for the gradient of the inputs."""

    def __init__(self):
        super().__init__()
        self.of_inputs = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution_backward.default:
            self.of_inputs.append(args[-1][0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("layer", "replaced"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), True),
        (nn.Conv2d(4, 6, 5, bias=False), True),
        (nn.Conv2d(4, 6, (1, 3), padding=(0, 2)), True),
        (nn.Conv2d(4, 6, 1, padding=1), False),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), False),
        (nn.Conv2d(4, 6, 3, dilation=2), False),
        (nn.Conv2d(4, 6, 3, groups=2), False),
        (nn.ConvTranspose2d(4, 6, 3), False),
    ],
    ids=["3 x 3", "5 x 5", "1 x 3", "wide edge", "stride", "dilation", "groups", "transposed"],
)
def test_gradients_of_inputs_are_those_of_torch(layer, replaced):
    layer = layer.double()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 4, 8, 9, generator=generator, dtype=torch.float64).requires_grad_()

    def gradients(*of):
        return torch.autograd.grad(layer(images).square().sum(), of)

    everything = images, *layer.parameters()
    expected = gradients(*everything)
    with Asked() as asked, InputGradients():
        found = gradients(*everything)
        gradients(*layer.parameters())
    assert asked.of_inputs == [not replaced, False]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
