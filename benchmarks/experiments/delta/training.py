"""The data, the selectors and the training of DELTA's experiments with real data.

docs/results/delta.md says what the paper's terms mean here. All selectors of a seed share the data, the
initial model and each client's mini-batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, Strategy

from benchmarks.experiments.methods import OWN_DRAWS, Method
from benchmarks.experiments.report import Cell, Curve, Outcome
from simulation.kernels import Kernel
from simulation.simulator import Simulator
from strategies.numerics.arrays import Floats, Ints
from strategies.selectors import Selection, register
from strategies.selectors.context import RoundContext
from strategies.selectors.delta.cluster_is import ClusterISSelector
from tasks import datasets
from tasks.federated_data import Dataset, FederatedData, federate
from tasks.partitions import share_out

BASELINE = "FedAvg"
"""The row with which all other rows are compared."""
METHODS = {
    BASELINE: Method("md"),
    "Cluster-IS": Method("cluster-is"),
    "PracIS": Method("prac-is"),
    "PracDELTA": Method("prac-delta"),
    "forecast": Method("forecast", OWN_DRAWS),
}
POWER_OF_CHOICE = {"Power-of-Choice": Method("pow-d")}
FULL_INFORMATION = {"IS": Method("fed-is"), "DELTA": Method("delta")}
LOCAL_STEPS, BATCH_SIZE = 5, 32


class LargeClustersSelector(ClusterISSelector):
    """Selects as `cluster-is`, but in the second half of the rounds omits the cluster of smallest norms.

    After 250 of 500 rounds, the paper replaces the clients of that cluster with clients of the other cluster.
    Here the draws of the second half are from the other clusters, and the aggregate estimates the mean over
    these clusters only, so it is biased. Clusters are made anew in each round, from the norms of each
    client's last participation. So an omitted client can return after the other norms have fallen.
    """

    name = "large-clusters-is"
    summary = "from clusters of similar norms, later without the smallest"
    unbiased = "none"  # type: ignore[assignment]

    def _select(self, context: RoundContext) -> Selection:
        if self._num_rounds is None:
            raise ValueError(
                f"num_rounds = None: must be given with {self.name}, which changes at half of it"
            )
        clients = context.available.clients
        if context.round > self._num_rounds // 2:
            large = self._large(clients)
            context = replace(context, available=self._presence(large, None))
        return super()._select(context)

    def _large(self, clients: Ints) -> Ints:
        """Return the clients outside the cluster of smallest known norms; all, if there is one cluster.

        Clients without a known norm are a cluster of their own, which is never omitted.
        """
        clusters = self._split(clients)
        known = [members for members in clusters if self._norms[clients[members[0]]] >= 0]
        if not known or len(clusters) == 1:
            return clients
        return np.delete(clients, known[0])


@dataclass(frozen=True)
class Backbone:
    """The training method that the selectors are combined with."""

    make_strategy: Callable[[], Strategy] | None = None  # makes the server strategy; None = FedAvg
    proximal_mu: float = 0.0  # FedProx's μ; 0 = no proximal term
    # Variance reduction by FedVARP, which stores an update of each client; None = no variance reduction.
    variates: Literal["fedvarp"] | None = None


MOMENTUM = Backbone(partial(FedAvgM, server_learning_rate=1.0, server_momentum=0.9))
PROXIMAL = Backbone(proximal_mu=0.01)
BACKBONES = {
    "plain": Backbone(),
    "momentum": MOMENTUM,
    "proximal": PROXIMAL,
    "FedVARP": Backbone(variates="fedvarp"),
    "Adagrad": Backbone(partial(FedAdagrad, eta=0.01)),
    "Adam": Backbone(partial(FedAdam, eta=0.01)),
}


@dataclass(frozen=True)
class Federation:
    """The data, the model and the training."""

    # kernel, or a function without arguments that makes the kernel (for networks in torch)
    kernel: Kernel | Callable[[], Kernel]
    partition: str  # distribution of the training images over the clients, see `tasks.partitions.FORMS`
    num_clients: int  # M, K and T
    clients_per_round: int
    num_rounds: int
    learning_rate: float  # learning rate of local SGD, which takes 5 steps on mini-batches of 32
    evaluate_every: int  # number of rounds between two measurements of the accuracy. T is a multiple of it.
    threshold: float  # accuracy in %. The tables show the number of rounds to reach it.
    backbone: Backbone = Backbone()  # training method that the selectors are combined with
    # A second threshold, in a column of its own. It is the same in all groups of rows of a table.
    common_threshold: float | None = None

    def data(self, images: datasets.Halves, seed: int) -> FederatedData:
        """Distribute the training images over the clients."""
        parts = share_out(self.partition, images.train.labels, self.num_clients, seed)
        return federate(images.train, parts.clients)

    def test(self, images: datasets.Halves) -> Dataset:
        """Return the images on which the accuracy is measured."""
        return images.test.take(slice(None))

    def quick(self) -> Federation:
        """Return this federation with a fifth of the rounds."""
        return replace(self, num_rounds=self.num_rounds // 5)


def with_backbones(federation: Federation, **thresholds: float) -> dict[str, Federation]:
    """Return name -> copy of the federation. `thresholds`: name of a backbone in `BACKBONES` -> threshold."""
    return {
        group: replace(federation, backbone=BACKBONES[group], threshold=threshold)
        for group, threshold in thresholds.items()
    }


class Run(NamedTuple):
    """The result of one selector."""

    accuracy: Curve  # test accuracy in %, after the rounds in which it is measured
    norms: Floats  # (T, 2) mean and the least ||g_m|| of the selected clients in each round
    seconds: Floats  # (T,) time of each round on this machine, without measurements of the accuracy

    def best(self, count: int, until: int | None = None) -> float:
        """Return the mean of the `count` best accuracies measured up to round `until`, None = the last."""
        rounds, accuracies = self.accuracy
        there = accuracies if until is None else accuracies[rounds <= until]
        return float(np.sort(there)[-count:].mean())

    def reached(self, threshold: float) -> float:
        """Return the first measured round with an accuracy >= `threshold`, NaN if there is none."""
        return self.accuracy.first(self.accuracy.y >= threshold)

    def seconds_to(self, threshold: float) -> float:
        """Return the seconds of all rounds up to the one that `reached` returns, or NaN."""
        round = self.reached(threshold)
        return round if np.isnan(round) else float(self.seconds[: int(round)].sum())


def train(federation: Federation, data: FederatedData, test: Dataset, method: Method, seed: int) -> Run:
    """Train a federation with one selector."""
    logging.getLogger("flwr").setLevel(logging.WARNING)  # Flower logs a line for every server step
    backbone, settings = federation.backbone, dict(method.settings)
    if method.selector == LargeClustersSelector.name:
        register(LargeClustersSelector)  # not on import: only one experiment uses it
    if method.selector == "pow-d":
        settings["num_candidates"] = 2 * federation.clients_per_round
    if method.selector in ("delta", "prac-delta"):
        settings["local_steps"] = LOCAL_STEPS
    simulator = Simulator(
        data,
        federation.kernel if isinstance(federation.kernel, Kernel) else federation.kernel(),
        method.selector,
        clients_per_round=federation.clients_per_round,
        num_rounds=federation.num_rounds,
        learning_rate=federation.learning_rate,
        batch_size=BATCH_SIZE,
        local_steps=LOCAL_STEPS,
        seed=seed,
        selector_settings=settings,
        server_strategy=backbone.make_strategy and backbone.make_strategy(),
        proximal_mu=backbone.proximal_mu,
        variates=backbone.variates,
    )
    rounds = np.arange(federation.evaluate_every, federation.num_rounds + 1.0, federation.evaluate_every)
    accuracy, norms, seconds = [], [], []
    for _ in range(federation.num_rounds):
        start = time.perf_counter()
        told = simulator.step().feedback.update_norms
        seconds.append(time.perf_counter() - start)
        norms.append((told.mean(), told.min()))
        if simulator.round % federation.evaluate_every == 0:
            accuracy.append(100 * simulator.evaluate(test).accuracy)
    return Run(Curve(rounds, np.array(accuracy)), np.array(norms), np.array(seconds))


def train_all(
    federation: Federation, methods: Mapping[str, Method], seed: int, images: datasets.Halves
) -> dict[str, Run]:
    """Train a federation with each selector; `methods` and the result have the rows of the table as keys."""
    data, test = federation.data(images, seed), federation.test(images)
    return {row: train(federation, data, test, method, seed) for row, method in methods.items()}


def run_figure(
    seed: int,
    path: Path,
    *,
    federation: Federation,
    methods: Mapping[str, Method],
    baseline: str = BASELINE,
    dataset: str = "mnist",
    quick: bool = False,
) -> Outcome:
    """Compare selectors as in figures 2 and 6: accuracies over the rounds, norms of the selected clients."""
    federation = federation.quick() if quick else federation
    end = federation.num_rounds
    stages = {"at 1/5": end // 5, "at 3/5": 3 * end // 5, "at the end": end}
    runs = train_all(federation, methods, seed, datasets.load(dataset, str(path)))
    cells: dict[Cell, float] = {}
    for row, run in runs.items():
        for stage, until in stages.items():
            cells[row, stage] = run.best(10, until)
        cells[row, f"rounds to {federation.threshold:g} %"] = run.reached(federation.threshold)
        late = run.norms[end // 2 :].mean(axis=0)
        cells[row, "mean norm"], cells[row, "least norm"] = map(float, late)
        for stage, until in stages.items():
            if row != baseline:
                cells[row, f"over {baseline} {stage}"] = run.best(10, until) - runs[baseline].best(10, until)
    return Outcome(cells, {"": {row: run.accuracy for row, run in runs.items()}})


def run_table(
    seed: int,
    path: Path,
    *,
    federations: Mapping[str, Federation],
    methods: Mapping[str, Method] = METHODS,
    dataset: str = "mnist",
    timed: bool = False,
    quick: bool = False,
) -> Outcome:
    """Compare selectors as in the paper's tables, in several federations, each a group of rows.

    If `timed`, the table has the seconds to the threshold, which differ between runs with the same seed.
    """
    images = datasets.load(dataset, str(path))
    cells: dict[Cell, float] = {}
    curves: dict[str, dict[str, Curve]] = {}
    for group, federation in federations.items():
        runs = train_all(federation.quick() if quick else federation, methods, seed, images)
        for row, run in runs.items():
            name = f"{group}: {row}"
            cells[name, "accuracy, %"] = run.best(5)
            if row != BASELINE:
                cells[name, "over FedAvg, points"] = run.best(5) - runs[BASELINE].best(5)
            cells[name, "rounds to threshold"] = run.reached(federation.threshold)
            if timed:
                cells[name, "seconds to threshold"] = run.seconds_to(federation.threshold)
            if federation.common_threshold is not None:
                cells[name, "rounds to common threshold"] = run.reached(federation.common_threshold)
        curves[group] = {row: run.accuracy for row, run in runs.items()}
    return Outcome(cells, curves)
