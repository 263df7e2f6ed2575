"""The claims of the Power-of-Choice paper, each with the cells that decide it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.results.claims import DECADES, POINTS, Claim

if TYPE_CHECKING:
    from benchmarks.experiments.report import Cell


def _poc() -> list[Claim]:
    floor = "log10 final gap"
    accuracy: list[tuple[str, str, str, str]] = [
        (".3", "poc-mnist", "accuracy at 160", "160"),
        ("2", "poc-mnist-alpha2", "accuracy at 80", "80"),
    ]
    return [
        Claim(
            "poc",
            "the larger d, the faster: d = 30 needs fewer rounds to a tenth of the gap than d = 6",
            "poc-quadratic",
            ("d=30", "rounds to 0.1"),
            ("d=6", "rounds to 0.1"),
        ),
        Claim(
            "poc",
            "the larger d, the higher the floor: d = 30 ends above d = 6 (30 clients)",
            "poc-quadratic",
            ("d=30", floor),
            ("d=6", floor),
            side="above",
            **DECADES,
        ),
        Claim(
            "poc",
            "adapow-d reaches rand's minimum: it ends below d = 30 by more than 1 decade (30 clients)",
            "poc-quadratic",
            ("adapow", floor),
            ("d=30", floor),
            limit=-1.0,
            **DECADES,
        ),
        Claim(
            "poc",
            "Synthetic(1,1), one client a round: d = 10m reaches a loss of .7 in fewer rounds than rand",
            "poc-synthetic",
            ("m=1 d=10m", "rounds to 0.7"),
            ("m=1 rand", "rounds to 0.7"),
        ),
        *(
            Claim(
                "poc",
                f"on MNIST (α = {alpha}) pow-d is more accurate than rand at round {round}",
                name,
                ("pow-d, d=6", column),
                ("rand", column),
                side="above",
                **POINTS,
            )
            for alpha, name, column, round in accuracy
        ),
    ]


def _poc_details() -> list[Claim]:
    alone: list[tuple[str, str, Cell, Cell, dict[str, Any]]] = [
        (
            "toy: two selections by loss come nearer to the minimum than random ones",
            "poc-toy",
            ("larger loss", "after 2"),
            ("at random, mean of all orders", "after 2"),
            {},
        ),
        (
            "ρ̄ grows with d on the way of a run: d = 30 is above d = 6",
            "poc-profile",
            ("d=30", "ρ̄ on the way"),
            ("d=6", "ρ̄ on the way"),
            {"side": "above"},
        ),
        (
            "selections correlate less with data sizes: the correlation of d = 15 is below rand's",
            "poc-profile",
            ("d=15", "correlation with p"),
            ("rand", "correlation with p"),
            {"scale": "difference"},
        ),
        (
            "Synthetic(1,1), three clients a round: d = 10m reaches a loss of .7 in fewer rounds than rand",
            "poc-synthetic",
            ("m=3 d=10m", "rounds to 0.7"),
            ("m=3 rand", "rounds to 0.7"),
            {},
        ),
        (
            "Synthetic(1,1), one client a round: d = 10m has a floor: its last loss is above adapow-d's",
            "poc-synthetic",
            ("m=1 d=10m", "last-50 loss"),
            ("m=1 adapow", "last-50 loss"),
            {"side": "above"},
        ),
        (
            "on MNIST (α = .3) pow-d reaches 60 % in fewer rounds than rand",
            "poc-mnist",
            ("pow-d, d=6", "R60"),
            ("rand", "R60"),
            {},
        ),
        (
            "on MNIST (α = .3) cpow-d's rounds take less time than pow-d's (simulated)",
            "poc-mnist",
            ("cpow-d, d=6", "t_comp, ms"),
            ("pow-d, d=6", "t_comp, ms"),
            {},
        ),
    ]
    accuracy: list[tuple[str, str, Cell, Cell]] = [
        (
            "on MNIST (α = .3) pow-d with 3 clients is more accurate than 10 random ones at round 160",
            "poc-mnist",
            ("pow-d, d=6", "accuracy at 160"),
            ("rand, C=.1", "accuracy at 160"),
        ),
        *(
            (
                f"on MNIST (α = {alpha}) pow-d is more accurate than afl at round 80",
                name,
                ("pow-d, d=6", "accuracy at 80"),
                ("afl", "accuracy at 80"),
            )
            for alpha, name in ((".3", "poc-mnist"), ("2", "poc-mnist-alpha2"))
        ),
        (
            "on MNIST (α = .1) pow-d is more accurate than rand at round 250",
            "poc-mnist-alpha.1",
            ("pow-d, d=6", "accuracy at 250"),
            ("rand", "accuracy at 250"),
        ),
        (
            "on MNIST (α = 2) a larger d is better at round 80: 20 against 6",
            "poc-mnist-d",
            ("α=2: pow-d, d=20", "accuracy at 80"),
            ("α=2: pow-d, d=6", "accuracy at 80"),
        ),
        (
            "on MNIST (α = .3) d = 6 is better than 20 at round 80",
            "poc-mnist-d",
            ("α=.3: pow-d, d=6", "accuracy at 80"),
            ("α=.3: pow-d, d=20", "accuracy at 80"),
        ),
        (
            "on MNIST with dropout (α = .3) pow-d is more accurate than rand at round 160",
            "poc-mnist-dropout",
            ("pow-d, d=6", "accuracy at 160"),
            ("rand", "accuracy at 160"),
        ),
        (
            "on MNIST (α = 2) where clients come and go pow-d is more accurate than rand at round 80",
            "poc-mnist-in-turns",
            ("α=2: pow-d, d=6", "accuracy at 80"),
            ("α=2: rand", "accuracy at 80"),
        ),
        (
            "on MNIST (α = 2) with ten clients a round pow-d is more accurate than rand at round 80",
            "poc-mnist-c.1",
            ("α=2: pow-d, d=20", "accuracy at 80"),
            ("α=2: rand", "accuracy at 80"),
        ),
        *(
            (
                f"on MNIST (α = 2) with {setting} pow-d is more accurate than rand at round 80",
                "poc-mnist-local",
                (f"{row}, α=2: pow-d, d=6", "accuracy at 80"),
                (f"{row}, α=2: rand", "accuracy at 80"),
            )
            for setting, row in (("batches of 128", "b=128"), ("100 local steps", "τ=100"))
        ),
    ]
    return [
        Claim(
            "poc",
            "the bound (eq. 8) is above the gap (d = 15)",
            "poc-bounds",
            ("d=15", "least bound / gap, eq. 8"),
            1.0,
            side="above",
        ),
        Claim(
            "poc",
            "the selection skew ρ̄ is above 1 (Definition 3.2, d = 15)",
            "poc-profile",
            ("d=15", "ρ̄"),
            1.0,
            side="above",
        ),
        *(Claim("poc", text, name, cell, other, **more) for text, name, cell, other, more in alone),
        *(
            Claim("poc", text, name, cell, other, side="above", **POINTS)
            for text, name, cell, other in accuracy
        ),
    ]


CLAIMS = (*_poc(), *_poc_details())
