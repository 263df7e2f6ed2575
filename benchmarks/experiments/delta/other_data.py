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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from flwr.serverapp.strategy import FedAdagrad, FedAdam

import tasks
from benchmarks.experiments.delta.training import (
    BASELINE,
    FORM_OF_ALPHA,
    FULL_INFORMATION,
    METHODS,
    MOMENTUM,
    PAPER,
    POWER_OF_CHOICE,
    PROXIMAL,
    Backbone,
    Federation,
    run_figure,
    run_table,
)
from benchmarks.experiments.report import Experiment
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
        """Give each client the training images of its user.

        Raises
        ------
        ValueError
            If the data do not name the users, or name fewer than `num_clients`.
        """
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
CELEBA = replace(USERS, kernel=partial(network, "celeba"), threshold=85, common_threshold=80)

_NOT_MEASURED = (
    "The experiment needs a GPU and data that could not be had here, so there are no results of ours."
)
_OF_USERS = "The accuracy is measured on 5000 test images of all users."

BACKBONES = {
    "plain": Backbone(),
    "momentum": MOMENTUM,
    "proximal": PROXIMAL,
    "FedVARP": Backbone(variates="fedvarp"),
    "Adagrad": Backbone(partial(FedAdagrad, eta=0.01)),
    "Adam": Backbone(partial(FedAdam, eta=0.01)),
}


def _with_backbones(federation: Federation, **thresholds: float) -> dict[str, Federation]:
    """Return name -> copy of the federation. `thresholds`: name of a backbone in `BACKBONES` -> threshold."""
    return {
        group: replace(federation, backbone=BACKBONES[group], threshold=threshold)
        for group, threshold in thresholds.items()
    }


def _table(
    number: int,
    dataset: str,
    title: str,
    source: str,
    federations: Mapping[str, Federation],
    claim: str,
    note: str,
) -> Experiment:
    """Return the experiment delta-table-NUMBER of `mnist`, on another data set.

    `federations` has the federation of each group of rows.
    """
    listed = ", ".join(f"{each.threshold:g} % ({group})" for group, each in federations.items())
    (common,) = {each.common_threshold for each in federations.values()}
    seconds = (
        "The seconds are those of training and selection on the machine that runs this. "
        if number == 3
        else ""
    )
    listed += "" if common is None else f", common threshold {common:g} %"
    return Experiment(
        name=f"delta-table-{number}-{dataset}",
        title=f"DELTA with {title}",
        source=f"{PAPER}, {source}",
        run=partial(run_table, federations=federations, dataset=dataset, timed=number == 3),
        seeds=3,
        claim=claim,
        note=f"{note} The thresholds are {listed}. The accuracy is measured every 10 rounds; the table "
        "has the mean of the five best measurements of the run. The paper takes them from the "
        f"plateau at the end. {seconds}{_NOT_MEASURED}",
        digits=2,
        y="test accuracy, %",
        data=f"{dataset}.npz",
        gpu=True,
    )


EXPERIMENTS = (
    _table(
        3,
        "fashion-mnist",
        "FedAvg, momentum and a proximal term, CNN on non-iid Fashion-MNIST",
        "Table 2",
        _with_backbones(SHARED, plain=70, momentum=70, proximal=70),
        "FedAvg, cluster-based IS, PracIS and PracDELTA reach 70.4, 71.2, 71.7 and 72.1 %. They "
        "reach 70 % after 426, 362, 404 and 322 rounds.",
        "In each of 500 rounds 20 of 300 clients take 5 steps of rate 0.01 (the paper: 5 "
        f"epochs), with α = 0.1. {FORM_OF_ALPHA} Momentum and the proximal term are not in the "
        "paper's table.",
    ),
    _table(
        3,
        "cifar10",
        "FedAvg, momentum and a proximal term, ResNet-18 on non-iid CIFAR-10",
        "Tables 2, 4 and 8",
        _with_backbones(CIFAR, plain=54, momentum=65, proximal=65),
        "FedAvg, cluster-based IS, PracIS and PracDELTA reach 54.3, 54.8, 55.1 and 55.2 %. They "
        "reach 54 % after 338, 323, 313 and 303 rounds.",
        "In each of 500 rounds 20 of 300 clients take 5 steps of rate 0.01 (the paper: 5 "
        f"epochs), with α = 0.5. The network has group norm. {FORM_OF_ALPHA} The paper's tables "
        "have the mean of the five best accuracies by their captions, but of the ten best for "
        "CIFAR-10 by appendix H.3.",
    ),
    _table(
        3,
        "femnist",
        "FedAvg, momentum and a proximal term, CNN on FEMNIST",
        "Tables 2 and 3",
        _with_backbones(USERS, plain=70, momentum=80, proximal=80),
        "FedAvg, cluster-based IS, PracIS and PracDELTA reach 71.8, 70.4, 80.1 and 81.4 % plain; "
        "80.9, 80.9, 81.8 and 82.6 % with momentum; 81.4, 80.9, 81.3 and 82.5 % with a proximal "
        "term.",
        "In each of 500 rounds 36 of 180 writers take 5 steps of rate 0.1 (the paper: 5 epochs). "
        f"The paper does not give the number of writers. {_OF_USERS}",
    ),
    _table(
        3,
        "celeba",
        "FedAvg, momentum and a proximal term, CNN on CelebA",
        "Tables 2 and 8",
        _with_backbones(CELEBA, plain=85, momentum=85, proximal=85),
        "FedAvg, cluster-based IS, PracIS and PracDELTA reach 85.9, 86.8, 88.1 and 89.7 %. They "
        "reach 85 % after 420, 395, 327 and 306 rounds.",
        "In each of 500 rounds 36 of 180 celebrities take 5 steps of rate 0.1 (the paper: 5 "
        "epochs). The paper does not give their number. The network is LEAF's, with group norm "
        f"instead of batch norm. {_OF_USERS} Momentum and the proximal term are not in the "
        "paper's table.",
    ),
    _table(
        5,
        "fashion-mnist",
        "FedVARP, CNN on non-iid Fashion-MNIST",
        "Table 5",
        _with_backbones(SHARED, FedVARP=73),
        "FedVARP reaches 73.8 ± .2 % alone, 74.0 ± .1 % with IS and 74.2 ± .1 % with DELTA.",
        "The setting is that of delta-table-3-fashion-mnist. FedVARP remembers an update of each "
        "client, 2 GB in all.",
    ),
    _table(
        6,
        "femnist",
        "Adagrad and Adam, CNN on FEMNIST",
        "Table 6",
        _with_backbones(USERS, Adagrad=80, Adam=80),
        "with Adagrad and with Adam, DELTA is ahead of FedAvg by .9 points; cluster-based IS is "
        "behind FedAvg.",
        "The setting is that of delta-table-3-femnist (the paper: 1000 rounds), with η = 0.01.",
    ),
    _table(
        6,
        "celeba",
        "Adagrad and Adam, CNN on CelebA",
        "Table 7",
        _with_backbones(replace(CELEBA, common_threshold=None), Adagrad=80, Adam=80),
        "with Adagrad and with Adam, DELTA is ahead of FedAvg by 1.5 points.",
        "The setting is that of delta-table-3-celeba (the paper: 1000 rounds), with η = 0.01.",
    ),
    _table(
        9,
        "cifar10",
        "momentum, by heterogeneity, ResNet-18 on non-iid CIFAR-10",
        "Table 9",
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
        "with α = 0.1, 0.5 and 1, DELTA is ahead of FedAvg by 1.0, .4 and .7 points, and IS by "
        ".6, .0 and .4 points.",
        "The setting is that of delta-table-3-cifar10 with momentum, which has the rows for α = 0.5.",
    ),
    Experiment(
        name="delta-femnist",
        title="DELTA on FEMNIST: accuracy over the rounds",
        source=f"{PAPER}, Figure 14(b), appendix H.3",
        run=partial(run_figure, federation=USERS, methods=METHODS, dataset="femnist"),
        seeds=3,
        claim="the accuracies of cluster-based IS and practical DELTA rise fast at first; those of "
        "practical DELTA and practical IS are the highest at the end.",
        note=f"The setting is that of delta-table-3-femnist, without momentum. {_NOT_MEASURED}",
        digits=2,
        y="test accuracy, %",
        data="femnist.npz",
        gpu=True,
    ),
    Experiment(
        name="delta-sampled-femnist",
        title="DELTA on FEMNIST, by number of sampled clients",
        source=f"{PAPER}, Figure 15",
        run=partial(
            run_table,
            federations={f"n = {n}": replace(USERS, clients_per_round=n) for n in (10, 20, 36, 60)},
            methods={row: METHODS[row] for row in (BASELINE, "PracDELTA")},
            dataset="femnist",
        ),
        seeds=3,
        claim="the more clients practical DELTA samples, the faster it converges.",
        note="The setting is that of delta-table-3-femnist, without momentum. We chose the numbers n. "
        f"{_NOT_MEASURED}",
        digits=2,
        y="test accuracy, %",
        data="femnist.npz",
        gpu=True,
    ),
    Experiment(
        name="delta-split-fashion-mnist",
        title="DELTA on split Fashion-MNIST: 9 of 109 clients own 90 % of the data",
        source=f"{PAPER}, Figure 14(a), appendix H.2",
        run=partial(
            run_figure,
            federation=replace(SHARED, partition="label-split", num_clients=109),
            methods=METHODS | POWER_OF_CHOICE | FULL_INFORMATION,
            dataset="fashion-mnist",
        ),
        seeds=3,
        claim="theoretical DELTA is faster than FedAvg, IS, cluster-based IS and Power-of-Choice.",
        note="In each of 500 rounds 20 of 109 clients take 5 steps of rate 0.01 (the paper: 5 "
        "epochs). Weights are in proportion to data. With IS and DELTA, all clients train in "
        "every round, so that their updates are known before 20 of them are selected. IS and "
        "DELTA make a tenth of their draws uniformly (floor 0.1); the paper has no floor. "
        "Power-of-Choice draws its 40 candidates in proportion to data (the paper: randomly from "
        f"all clients). {_NOT_MEASURED}",
        digits=2,
        y="test accuracy, %",
        data="fashion-mnist.npz",
        gpu=True,
    ),
)
"""The experiments of the DELTA paper on its own data."""
