"""DELTA's experiments on MNIST: figures 2, 6, 7, 14(a) and 15, and tables 2 to 9."""

from dataclasses import replace
from functools import partial

from benchmarks.experiments.delta.training import (
    BASELINE,
    FULL_INFORMATION,
    METHODS,
    MOMENTUM,
    POWER_OF_CHOICE,
    Federation,
    LargeClustersSelector,
    run_figure,
    run_table,
    with_backbones,
)
from benchmarks.experiments.methods import Method
from benchmarks.experiments.report import Experiment
from simulation.kernels import MLP, Softmax

FIGURE_7 = {"Cluster-IS": Method("cluster-is"), "Cluster-IS, large": Method(LargeClustersSelector.name)}

FIGURE_2 = Federation(
    kernel=Softmax(),
    partition="dirichlet-balanced:0.5",
    num_clients=200,
    clients_per_round=10,
    num_rounds=500,
    learning_rate=0.01,
    evaluate_every=4,
    threshold=88,
)
FULL_INFORMATION_FIGURE_2 = replace(FIGURE_2, num_rounds=200, threshold=85)
SPLIT = replace(
    FIGURE_2, partition="label-split", num_clients=109, num_rounds=100, evaluate_every=2, threshold=82
)
TABLES = Federation(
    kernel=MLP((784, 32, 10)),
    partition="dirichlet-balanced:0.5",
    num_clients=150,
    clients_per_round=10,
    num_rounds=150,
    learning_rate=0.05,
    evaluate_every=5,
    threshold=85,
)
TABLE_3 = with_backbones(TABLES, plain=85, momentum=91, proximal=85)
TABLE_5 = with_backbones(TABLES, FedVARP=85)
TABLE_6 = with_backbones(TABLES, Adagrad=86, Adam=88)
TABLE_9 = {
    f"α = {alpha:g}": replace(
        TABLES, partition=f"dirichlet-balanced:{alpha}", backbone=MOMENTUM, threshold=threshold
    )
    for alpha, threshold in ((0.1, 89), (1.0, 92), (5.0, 92))
}
"""α = 5 is the other reading of the paper's α = 0.5: 0.5 for each of the ten classes."""
FIGURE_15 = {f"n = {n}": replace(TABLES, clients_per_round=n) for n in (5, 20)}

_experiment = partial(Experiment, digits=2, y="test accuracy, %", data="mnist.npz")

EXPERIMENTS = (
    _experiment("delta-mnist", partial(run_figure, federation=FIGURE_2, methods=METHODS | POWER_OF_CHOICE)),
    _experiment(
        "delta-mnist-full",
        partial(
            run_figure,
            federation=FULL_INFORMATION_FIGURE_2,
            methods={BASELINE: METHODS[BASELINE]} | FULL_INFORMATION,
        ),
    ),
    _experiment(
        "delta-mnist-clusters",
        partial(run_figure, federation=FIGURE_2, methods=FIGURE_7, baseline="Cluster-IS"),
    ),
    _experiment(
        "delta-split",
        partial(
            run_figure,
            federation=SPLIT,
            methods=METHODS
            | POWER_OF_CHOICE
            | FULL_INFORMATION
            | {"PracDELTA, fixed size": Method("prac-delta", {"design": "systematic"})},
        ),
        seeds=10,
    ),
    _experiment("delta-table-3", partial(run_table, federations=TABLE_3)),
    _experiment("delta-table-5", partial(run_table, federations=TABLE_5)),
    _experiment("delta-table-6", partial(run_table, federations=TABLE_6)),
    _experiment("delta-table-9", partial(run_table, federations=TABLE_9)),
    _experiment(
        "delta-sampled",
        partial(
            run_table,
            federations=FIGURE_15,
            methods={row: METHODS[row] for row in (BASELINE, "PracDELTA", "forecast")},
        ),
    ),
)
