"""DELTA's experiments on the paper's own data: Fashion-MNIST, CIFAR-10, FEMNIST and CelebA.

`training` has the training, the selectors and the paper's terms. The data were not available here, so these
experiments have no results yet. The paper states these numbers (section 5, appendix H.2): 500 rounds and
mini-batches of 32; on Fashion-MNIST (α = 0.1) and CIFAR-10 (α = 0.5), 20 of 300 clients in each round and the
rate 0.01; on LEAF's data, a fifth of the users in each round and the rate 0.1. As in `mnist`, a client takes
5 steps instead of the paper's 5 epochs, and the selectors have their default settings.

On LEAF's data (FEMNIST and CelebA), the accuracy is measured on 5000 test images of all users, not only of
the clients. The networks:

- **Fashion-MNIST, FEMNIST**: the network of McMahan et al. 2017, with two convolutions and two dense layers
  (LEAF's network for FEMNIST has 2,048 hidden units instead of 512).
- **CelebA**: LEAF's network with group norm instead of batch norm.
- **CIFAR-10**: ResNet-18 with group norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

import tasks
from benchmarks.experiments.delta.training import (
    BASELINE,
    FULL_INFORMATION,
    METHODS,
    MOMENTUM,
    POWER_OF_CHOICE,
    Federation,
    run_figure,
    run_table,
    with_backbones,
)
from benchmarks.experiments.report import Experiment, Outcome
from simulation.kernels import Kernel, kernel_of
from tasks import datasets
from tasks.federated_data import Dataset, FederatedData, federate

TESTED = 5000
"""The number of test images of LEAF's data on which the accuracy is measured, at most."""


@dataclass(frozen=True)
class Large(Federation):
    """A federation whose quick form is shorter, since its model is larger."""

    def quick(self) -> Large:
        """Return this federation with 5 rounds, in each of which 2 clients train."""
        return replace(self, num_rounds=5, evaluate_every=1, clients_per_round=2)


@dataclass(frozen=True)
class OfUsers(Large):
    """A federation in which each client is a user, one of `num_clients` users drawn at random."""

    def data(self, images: datasets.Halves, seed: int) -> FederatedData:
        """Give each client the training images of its user. ValueError if the data name too few users."""
        users = images.train.users
        found = 0 if users is None else len(np.unique(users))
        if users is None or found < self.num_clients:
            raise ValueError(f"users_train: names {found} users: must name at least {self.num_clients}")
        chosen = np.random.default_rng(seed).permutation(np.unique(users))[: self.num_clients]
        return federate(images.train, [np.flatnonzero(users == user) for user in chosen])

    def test(self, images: datasets.Halves) -> Dataset:
        """Return at most `TESTED` test images of all users."""
        rows = np.random.default_rng(0).permutation(len(images.test.labels))[:TESTED]
        return images.test.take(rows)


def network(task: str) -> Kernel:
    """Return the model of a task, which torch trains."""
    return kernel_of(tasks.create(task))


def resnet(dataset: str) -> Kernel:
    """Return ResNet-18 for a data set of colour images. The paper does not say which norm its ResNet has."""
    from tasks.models.resnet import ResNet18

    return kernel_of(ResNet18(dataset))


SHARED = Large(
    kernel=partial(network, "fashion-mnist-cnn"),
    partition="dirichlet-balanced:0.1",
    num_clients=300,
    clients_per_round=20,
    num_rounds=500,
    learning_rate=0.01,
    evaluate_every=10,
    threshold=70,
)
USERS = OfUsers(
    kernel=partial(network, "femnist"),
    partition="natural",
    num_clients=180,
    clients_per_round=36,
    num_rounds=500,
    learning_rate=0.1,
    evaluate_every=10,
    threshold=70,
)
CIFAR = replace(
    SHARED,
    kernel=partial(resnet, "cifar10"),
    partition="dirichlet-balanced:0.5",
    threshold=54,
    common_threshold=50,
)
MNIST_CNN = replace(SHARED, kernel=partial(network, "mnist-cnn"), threshold=80, common_threshold=90)
"""The setting of the paper's Table 2 for Fashion-MNIST, whose images have MNIST's shape."""
CELEBA = replace(USERS, kernel=partial(network, "celeba"), threshold=85, common_threshold=80)


def _experiment(name: str, dataset: str, run: Callable[..., Outcome]) -> Experiment:
    return Experiment(
        f"delta-{name}{dataset}",
        partial(run, dataset=dataset),
        seeds=3,
        digits=2,
        y="test accuracy, %",
        data=f"{dataset}.npz",
        gpu=True,
    )


def _table(number: int, dataset: str, federations: Mapping[str, Federation]) -> Experiment:
    """Return the experiment delta-table-NUMBER of `mnist`, on another data set."""
    return _experiment(
        f"table-{number}-", dataset, partial(run_table, federations=federations, timed=number == 3)
    )


EXPERIMENTS = (
    Experiment(
        "delta-table-3-mnist-cnn",
        partial(run_table, federations={"plain": MNIST_CNN}),
        seeds=3,
        digits=2,
        y="test accuracy, %",
        data="mnist.npz",
        gpu=True,
    ),
    _table(3, "fashion-mnist", with_backbones(SHARED, plain=70, momentum=70, proximal=70)),
    _table(3, "cifar10", with_backbones(CIFAR, plain=54, momentum=65, proximal=65)),
    _table(3, "femnist", with_backbones(USERS, plain=70, momentum=80, proximal=80)),
    _table(3, "celeba", with_backbones(CELEBA, plain=85, momentum=85, proximal=85)),
    _table(5, "fashion-mnist", with_backbones(SHARED, FedVARP=73)),
    _table(6, "femnist", with_backbones(USERS, Adagrad=80, Adam=80)),
    _table(6, "celeba", with_backbones(replace(CELEBA, common_threshold=None), Adagrad=80, Adam=80)),
    _table(
        9,
        "cifar10",
        {
            f"α = {alpha:g}": replace(
                CIFAR,
                partition=f"dirichlet-balanced:{alpha:g}",
                backbone=MOMENTUM,
                threshold=threshold,
                common_threshold=None,
            )
            for alpha, threshold in ((0.1, 42), (1.0, 71))
        },
    ),
    _experiment("", "femnist", partial(run_figure, federation=USERS, methods=METHODS)),
    _experiment(
        "sampled-",
        "femnist",
        partial(
            run_table,
            federations={f"n = {n}": replace(USERS, clients_per_round=n) for n in (10, 20, 36, 60)},
            methods={row: METHODS[row] for row in (BASELINE, "PracDELTA")},
        ),
    ),
    _experiment(
        "split-",
        "fashion-mnist",
        partial(
            run_figure,
            federation=replace(SHARED, partition="label-split", num_clients=109),
            methods=METHODS | POWER_OF_CHOICE | FULL_INFORMATION,
        ),
    ),
)
"""The experiments of the DELTA paper on its own data."""
