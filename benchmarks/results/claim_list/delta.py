"""The claims of the DELTA paper, each with the cells that decide it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.results.claims import DECADES, POINTS, Claim

if TYPE_CHECKING:
    from benchmarks.experiments.report import Cell


def _delta() -> list[Claim]:
    mean = "its pair, plain mean"
    claims = [
        Claim(
            "delta",
            "toy: the plain mean of DELTA's pair is nearer to the mean of all than the plain mean of "
            "importance sampling's pair",
            "delta-toy",
            ("DELTA", mean),
            ("IS", mean),
        ),
        Claim(
            "delta",
            "clients with much in common: DELTA's estimate has less variance than importance sampling's",
            "delta-variance",
            ("common 3", "DELTA"),
            ("common 3", "IS"),
        ),
        Claim(
            "delta",
            "DELTA's estimate has less variance than uniform sampling's (heavy-tailed updates)",
            "delta-variance",
            ("heavy-tailed", "DELTA"),
            1.0,
        ),
    ]
    others: list[tuple[str, str]] = [("FedAvg", "FedAvg"), ("IS", "importance sampling")]
    claims += [
        Claim(
            "delta",
            f"in the regression DELTA ends at a lower loss than {other} (ν = 20)",
            "delta-regression",
            ("DELTA", "ν = 20"),
            (row, "ν = 20"),
            **DECADES,
        )
        for row, other in others
    ]
    cells: list[tuple[str, str, Cell, Cell]] = [
        (
            "on MNIST (logistic regression) PracDELTA ends more accurate than FedAvg",
            "delta-mnist",
            ("PracDELTA", "at the end"),
            ("FedAvg", "at the end"),
        ),
        (
            "on MNIST (perceptron) PracDELTA is more accurate than FedAvg",
            "delta-table-3",
            ("plain: PracDELTA", "accuracy, %"),
            ("plain: FedAvg", "accuracy, %"),
        ),
        (
            "on MNIST (the paper's CNN, 20 of 300) PracDELTA is more accurate than FedAvg",
            "delta-table-3-mnist-cnn",
            ("plain: PracDELTA", "accuracy, %"),
            ("plain: FedAvg", "accuracy, %"),
        ),
    ]
    return claims + [
        Claim("delta", text, name, cell, other, side="above", **POINTS) for text, name, cell, other in cells
    ]


def _delta_details() -> list[Claim]:
    more: list[tuple[str, str, Cell, Cell | float, dict[str, Any]]] = [
        (
            "clients with much in common: DELTA's variance is not above uniform sampling's",
            "delta-variance",
            ("common 3", "DELTA"),
            1.0,
            {},
        ),
        (
            "DELTA reduces Φ̃ of the bound: uniform sampling's Φ̃ is above DELTA's (heavy-tailed)",
            "delta-bounds",
            ("heavy-tailed", "Φ̃, DELTA"),
            1.0,
            {"side": "above"},
        ),
        (
            "the bound of Theorem 3.5 is above the least squared gradient (DELTA)",
            "delta-theorems",
            ("DELTA", "least bound / gradient², Theorem 3.5"),
            1.0,
            {"side": "above"},
        ),
        (
            "DELTA's least squared gradient is below FedAvg's",
            "delta-theorems",
            ("DELTA", "log10 least gradient²"),
            ("FedAvg", "log10 least gradient²"),
            DECADES,
        ),
        (
            "regression from far away: DELTA needs fewer rounds than FedAvg (ν = 5)",
            "delta-regression-far",
            ("DELTA", "rounds, ν = 5"),
            ("FedAvg", "rounds, ν = 5"),
            {},
        ),
        (
            "regression with 200 clients: DELTA needs fewer rounds than FedAvg (ν = 30)",
            "delta-regression-200",
            ("DELTA", "rounds, ν = 30"),
            ("FedAvg", "rounds, ν = 30"),
            {},
        ),
        (
            "regression with A = 8, b = 2: DELTA ends at a lower loss than FedAvg (ν = 20)",
            "delta-regression-8-2",
            ("DELTA", "ν = 20"),
            ("FedAvg", "ν = 20"),
            DECADES,
        ),
        (
            "Figure 9: no norm is above 8 under practical importance sampling (regression)",
            "delta-extremes",
            ("practical IS: largest norm", "extreme"),
            8.0,
            {},
        ),
        (
            "on MNIST cluster-based importance sampling selects smaller gradients than PracIS",
            "delta-mnist",
            ("Cluster-IS", "mean norm"),
            ("PracIS", "mean norm"),
            {},
        ),
        (
            "on MNIST (perceptron) PracDELTA needs fewer rounds than FedAvg",
            "delta-table-3",
            ("plain: PracDELTA", "rounds to threshold"),
            ("plain: FedAvg", "rounds to threshold"),
            {},
        ),
        (
            "on MNIST (the paper's CNN, 20 of 300) PracDELTA needs fewer rounds than FedAvg",
            "delta-table-3-mnist-cnn",
            ("plain: PracDELTA", "rounds to threshold"),
            ("plain: FedAvg", "rounds to threshold"),
            {},
        ),
        (
            "PracDELTA with 20 clients needs fewer rounds than with 5",
            "delta-sampled",
            ("n = 20: PracDELTA", "rounds to threshold"),
            ("n = 5: PracDELTA", "rounds to threshold"),
            {},
        ),
    ]
    accuracy: list[tuple[str, str, Cell, Cell]] = [
        *(
            (
                f"on MNIST DELTA with full information is more accurate than {other} at 3/5 of the run",
                "delta-mnist-full",
                ("DELTA", "at 3/5"),
                (other, "at 3/5"),
            )
            for other in ("FedAvg", "IS")
        ),
        (
            "without the cluster of small gradients cluster-based sampling ends more accurate than with it",
            "delta-mnist-clusters",
            ("Cluster-IS, large", "at the end"),
            ("Cluster-IS", "at the end"),
        ),
        (
            "split MNIST: PracDELTA ends more accurate than FedAvg",
            "delta-split",
            ("PracDELTA", "at the end"),
            ("FedAvg", "at the end"),
        ),
        *(
            (
                f"on MNIST (perceptron) with {words} PracDELTA is more accurate than FedAvg",
                name,
                (f"{row}: PracDELTA", "accuracy, %"),
                (f"{row}: FedAvg", "accuracy, %"),
            )
            for words, name, row in (
                ("server momentum", "delta-table-3", "momentum"),
                ("a proximal term", "delta-table-3", "proximal"),
                ("FedVARP", "delta-table-5", "FedVARP"),
                ("Adagrad", "delta-table-6", "Adagrad"),
                ("Adam", "delta-table-6", "Adam"),
                ("momentum and α = 0.1", "delta-table-9", "α = 0.1"),
                ("momentum and α = 1", "delta-table-9", "α = 1"),
            )
        ),
    ]
    return [
        *(Claim("delta", text, name, cell, other, **how) for text, name, cell, other, how in more),
        *(
            Claim("delta", text, name, cell, other, side="above", **POINTS)
            for text, name, cell, other in accuracy
        ),
    ]


CLAIMS = (*_delta(), *_delta_details())
