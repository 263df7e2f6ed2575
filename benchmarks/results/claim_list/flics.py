"""The claims of the FLICS paper, each with the cells that decide it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.results.claims import POINTS, Claim

if TYPE_CHECKING:
    from benchmarks.experiments.report import Cell


def _flics() -> list[Claim]:
    return [
        *(
            Claim(
                "flics",
                f"after 4000 rounds FLICS' variance is within .1 % of the offline optimum ({row})",
                "flics-variance",
                (row, "T = 4000"),
                0.0,
                scale="difference",
                limit=0.1,
                unit=" %",
            )
            for row in ("Poisson, K = 20", "Markov, K = 20", "diurnal, K = 20")
        ),
        *(
            Claim(
                "flics",
                f"on Synthetic FLICS-AVG's best accuracy is above {other}'s ({row})",
                "flics-synthetic",
                (row, "FLICS-AVG"),
                (row, other),
                side="above",
                **POINTS,
            )
            for row in ("Markov", "scarce Poisson")
            for other in ("FedAvg", "Naive")
        ),
    ]


def _flics_details() -> list[Claim]:
    accuracy: list[tuple[str, str, Cell, Cell]] = [
        (
            "uniform availability, Synthetic: FLICS-AVG's best accuracy is above Naive's",
            "flics-synthetic",
            ("uniform", "FLICS-AVG"),
            ("uniform", "Naive"),
        ),
        *(
            (
                f"on {data} FLICS-AVG's worst group is above {other}'s (correlated trace)",
                name,
                ("trace, correlated, worst group", "FLICS-AVG"),
                ("trace, correlated, worst group", other),
            )
            for data, name in (("Synthetic", "flics-synthetic"), ("MNIST", "flics-mnist"))
            for other in ("FedAvg", "Naive")
        ),
        *(
            (
                f"on MNIST {ours}'s best accuracy is above {other}'s (Poisson)",
                "flics-mnist",
                ("Poisson", ours),
                ("Poisson", other),
            )
            for ours, other in (("FLICS-AVG", "FedAvg"), ("FLICS-ADAM", "FedAdam"), ("FLICS-AVG", "Naive"))
        ),
    ]
    return [
        Claim(
            "flics",
            "the bound of Theorem 1 is above the least squared gradient (Markov)",
            "flics-bound",
            ("Markov", "least bound / gradient²"),
            1.0,
            side="above",
        ),
        Claim(
            "flics",
            "Lemma 4: a group's mean weight is at most ε̂ times p (Markov)",
            "flics-bound",
            ("Markov", "largest weight / p"),
            ("Markov", "ε̂"),
        ),
        *(
            Claim(
                "flics",
                f"on Synthetic FLICS-AVG needs fewer rounds than Naive ({row})",
                "flics-synthetic",
                (f"{row}, rounds", "FLICS-AVG"),
                (f"{row}, rounds", "Naive"),
            )
            for row in ("uniform", "Markov", "scarce Poisson")
        ),
        *(
            Claim("flics", text, name, cell, other, side="above", **POINTS)
            for text, name, cell, other in accuracy
        ),
    ]


CLAIMS = (*_flics(), *_flics_details())
