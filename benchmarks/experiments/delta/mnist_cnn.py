"""DELTA's Table 2 on MNIST with the paper's network, clients and rounds: needs a GPU.

`training` has the training, the selectors and the paper's terms. The paper uses Fashion-MNIST, whose images
have the same shape as MNIST's. Fashion-MNIST was not available here; `other_data` has the experiment with it.
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
        "and 72.1 %. They reach 70 % after 426, 362, 404 and 322 rounds.",
        note="The setting is that of delta-table-3-fashion-mnist, but on MNIST. The network and the "
        "numbers are the paper's: 20 of 300 clients, α = 0.1, rate 0.01 and 500 rounds; only the "
        f"local training has 5 steps in place of 5 epochs. {FORM_OF_ALPHA} The threshold is 80 %, "
        "and the common threshold 90 %. The accuracy is measured every 10 rounds; the table has "
        "the mean of the five best measurements of the run. The paper takes them from the "
        "plateau at the end.",
        digits=2,
        y="test accuracy, %",
        data="mnist.npz",
        gpu=True,
    ),
)
"""Table 2 of the DELTA paper on MNIST, with the paper's network for Fashion-MNIST."""
