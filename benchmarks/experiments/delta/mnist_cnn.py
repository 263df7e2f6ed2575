"""DELTA's Table 2 on MNIST with the paper's network, clients and rounds: needs a GPU.

`training` has the training, the selectors and the paper's terms. The paper uses Fashion-MNIST, which was not
available here (`other_data`); its images have MNIST's shape.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.experiments.delta.other_data import SHARED, network
from benchmarks.experiments.delta.training import FORM_OF_ALPHA, PAPER, run_table
from benchmarks.experiments.report import Experiment

CNN = replace(SHARED, kernel=partial(network, "mnist-cnn"), threshold=80, common_threshold=90)

EXPERIMENTS = (
    Experiment(
        name="delta-table-3-mnist-cnn",
        title="DELTA with FedAvg, CNN on non-iid MNIST",
        source=f"{PAPER}, Table 2 (Fashion-MNIST)",
        run=partial(run_table, federations={"plain": CNN}),
        seeds=3,
        claim="on Fashion-MNIST, FedAvg, cluster-based IS, PracIS and PracDELTA reach 70.4, 71.2, 71.7 "
        "and 72.1 %, and 70 % after 426, 362, 404 and 322 rounds.",
        note="As delta-table-3-fashion-mnist, but on MNIST, with the paper's network and numbers: 20 of 300 "
        "clients, α = 0.1, 5 steps of rate 0.01 (the paper: 5 epochs), 500 rounds. "
        f"{FORM_OF_ALPHA} Thresholds: 80 %, common threshold 90 %. Accuracy: the mean of the five best "
        "measurements of the run, of one every 10 rounds (the paper: of the plateau at the end).",
        digits=2,
        y="test accuracy, %",
        data="mnist.npz",
        gpu=True,
    ),
)
"""Table 2 of the DELTA paper with its network for Fashion-MNIST."""
