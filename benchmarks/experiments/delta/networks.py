"""DELTA's Table 2 with the paper's networks and numbers of clients, on MNIST: needs a GPU.

`mnist` has the training, the selectors and the paper's terms, and `other_data` the paper's data sets, which
could not be had here. Here are their networks on MNIST: the convolutional network that the paper has for
Fashion-MNIST, with all its numbers, and ResNet-18, which it has for CIFAR-10, with fewer rounds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.experiments.delta.mnist import FORM_OF_ALPHA, MOMENTUM, PAPER, run_table
from benchmarks.experiments.delta.other_data import CIFAR, SHARED, network
from benchmarks.experiments.report import Experiment
from simulation.kernels import Kernel, kernel_of


def resnet() -> Kernel:
    """Return ResNet-18 with group norm, for MNIST."""
    from tasks.resnet import ResNet18

    return kernel_of(ResNet18("mnist"))


CNN = replace(SHARED, kernel=partial(network, "mnist-cnn"), threshold=80, common_threshold=90)
RESNET = replace(CIFAR, kernel=resnet, num_rounds=100, evaluate_every=5, threshold=80, common_threshold=90)

_experiment = partial(Experiment, seeds=3, digits=2, y="test accuracy, %", data="mnist.npz", gpu=True)
_THRESHOLDS = (
    "Thresholds: 80 %, common threshold 90 %. Accuracy: the mean of the five best measurements of the run."
)

EXPERIMENTS = (
    _experiment(
        name="delta-table-3-mnist-cnn",
        title="DELTA with FedAvg and momentum, CNN on non-iid MNIST",
        source=f"{PAPER}, Table 2 (Fashion-MNIST)",
        run=partial(run_table, federations={"plain": CNN, "momentum": replace(CNN, backbone=MOMENTUM)}),
        claim="on Fashion-MNIST, FedAvg, cluster-based IS, PracIS and PracDELTA reach 70.4, 71.2, 71.7 "
        "and 72.1 %, and 70 % after 426, 362, 404 and 322 rounds.",
        note="As delta-table-3-fashion-mnist, but on MNIST: the paper's network and numbers, 20 of 300 "
        f"clients, α = 0.1, 5 steps of rate 0.01 (the paper: 5 epochs), 500 rounds. "
        f"{FORM_OF_ALPHA} {_THRESHOLDS}",
    ),
    _experiment(
        name="delta-table-3-mnist-resnet",
        title="DELTA with FedAvg, ResNet-18 on non-iid MNIST",
        source=f"{PAPER}, Tables 2, 4 and 8 (CIFAR-10)",
        run=partial(run_table, federations={"plain": RESNET}),
        claim="on CIFAR-10, FedAvg, cluster-based IS, PracIS and PracDELTA reach 54.3, 54.8, 55.1 and 55.2 "
        "%, and 54 % after 338, 323, 313 and 303 rounds.",
        note="As delta-table-3-cifar10, but on MNIST: the paper's network, 20 of 300 clients, α = 0.5, 5 "
        "steps of rate 0.01 (the paper: 5 epochs); 100 rounds, since MNIST is learnt faster (the paper: "
        f"500); the accuracy is measured every 5 rounds. {FORM_OF_ALPHA} {_THRESHOLDS}",
    ),
)
"""Table 2 of the DELTA paper with its networks, on MNIST."""
