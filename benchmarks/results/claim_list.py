"""All claims of the front page of results: what a user gains, then what each paper says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.results.claims import Claim

if TYPE_CHECKING:
    from benchmarks.experiments.report import Cell

POINTS: dict[str, Any] = {"scale": "difference", "unit": " points"}
DECADES: dict[str, Any] = {"scale": "difference", "unit": " (log10)"}


def _streams() -> list[Claim]:
    """Return the claim about `forecast` on each kind of stream that tells selectors apart."""
    best = {
        "static": "avare",
        "common decay": "avare",
        "drift": "avare",
        "a tenth jumps": "avare",
        "noise 1": "uniform",
        "noise 2": "uniform",
        "sizes uninformative": "avare",
        "sizes anti-informative": "avare",
        "sizes exact, noise 1": "md",
        "everybody x100": "uniform",
        "half-half cycle": "avare",
        "80 % zeros": "avare",
    }
    text = (
        "`forecast`'s regret is at most 1.1 times that of the best of `uniform`, `md` and `avare` ({}: `{}`)"
    )
    return [
        Claim(
            "forecast",
            text.format(row, other),
            "forecast-streams",
            (row, "forecast"),
            (row, other),
            limit=1.1,
        )
        for row, other in best.items()
    ]


def _users() -> list[Claim]:
    regret = "`forecast` has less regret than uniform sampling where norms differ (OSMD's section F, σ = {})"
    return [
        *(
            Claim("users", regret.format(s), "osmd-f2", ("forecast, cold", f"regret, σ={s}"), 1.0)
            for s in (1, 3, 10)
        ),
        Claim(
            "users",
            "`forecast` ends at a lower loss than uniform sampling there (σ = 10)",
            "osmd-f2",
            ("forecast, cold", "final loss, σ=10"),
            1.0,
        ),
        Claim(
            "users",
            "`forecast` ends at a lower loss where norms differ more (s_m Σ as standard deviation, σ = 10)",
            "osmd-f-std",
            ("forecast, cold", "final loss, σ=10"),
            1.0,
        ),
        Claim(
            "users",
            "`forecast` costs nothing where all clients are alike: at most 1.01 times uniform's variance",
            "forecast-streams",
            ("all equal", "forecast"),
            ("all equal", "uniform"),
            limit=1.01,
        ),
        Claim(
            "users",
            "Power-of-Choice (15 candidates of 30 clients) needs fewer rounds to a tenth of the gap",
            "poc-quadratic",
            ("d=15", "rounds to 0.1"),
            ("rand", "rounds to 0.1"),
        ),
        Claim(
            "users",
            "FLICS has less variance than fixed quotas where groups come and go (Markov)",
            "flics-variance",
            ("Markov, K = 20", "naive-group, T = 4000"),
            ("Markov, K = 20", "T = 4000"),
            scale="difference",
            side="above",
            unit=" % of the optimum",
        ),
        Claim(
            "users",
            "`forecast` ends more accurate than FedAvg where few clients hold most data (split MNIST)",
            "delta-split",
            ("forecast", "at the end"),
            ("FedAvg", "at the end"),
            side="above",
            **POINTS,
        ),
    ]


def _osmd() -> list[Claim]:
    return [
        *(
            Claim(
                "osmd",
                f"with the printed rate Adaptive-OSMD has less regret than uniform (section F, σ = {s})",
                "osmd-f1",
                ("adaptive-osmd", f"regret, σ={s}"),
                1.0,
            )
            for s in (1, 3, 10)
        ),
        *(
            Claim(
                "osmd",
                f"with 100 times that rate it has less regret than uniform sampling (section F, σ = {s})",
                "osmd-f1",
                ("adaptive-osmd × 100", f"regret, σ={s}"),
                1.0,
            )
            for s in (1, 3, 10)
        ),
        # With the printed rate, the settings differ: sampled norms only, or all norms asked for first.
        Claim(
            "osmd",
            "with the printed rate its regret stays above .95 times uniform's (section F, σ = 10)",
            "osmd-f1",
            ("adaptive-osmd", "regret, σ=10"),
            1.0,
            side="above",
            limit=0.95,
        ),
        Claim(
            "osmd",
            "with the printed rate its regret stays above .95 times uniform's (MNIST, batches of 5)",
            "osmd-g",
            ("adaptive-osmd", "regret, batch 5"),
            1.0,
            side="above",
            limit=0.95,
        ),
        Claim(
            "osmd",
            "asked for norms first, its regret is below .95 times uniform's (MNIST, batches of 5)",
            "osmd-g",
            ("adaptive-osmd, asked", "regret, batch 5"),
            1.0,
            limit=0.95,
        ),
        Claim(
            "osmd",
            "as the text reads, the best p ends at a lower loss than uniform (σ = 10)",
            "osmd-f1",
            ("best p ≥ α/M (oracle)", "final loss, σ=10"),
            1.0,
        ),
        Claim(
            "osmd",
            "section F in the authors' setting, σ = 10: Adaptive-OSMD ends at a lower loss than uniform",
            "osmd-f-authors",
            ("adaptive-osmd", "final loss, σ=10"),
            1.0,
        ),
        *(
            Claim(
                "osmd",
                f"Adaptive-OSMD × 100 has less regret than {other} (section F, σ = 10)",
                "osmd-f2",
                ("adaptive-osmd × 100", "regret, σ=10"),
                (row, "regret, σ=10"),
            )
            for other, row in (("MABS", "mabs"), ("VRB", "vrb"), ("Avare that starts cold", "avare, cold"))
        ),
        Claim(
            "osmd",
            "with SCAFFOLD, OSMD has a lower loss over all rounds than uniform sampling (σ = 10)",
            "osmd-scaffold",
            ("osmd, rate 0.001", "loss, all rounds, σ=10"),
            1.0,
        ),
        Claim(
            "osmd",
            "MNIST, skewed sizes, batches of 5: Adaptive-OSMD ends at a lower loss than uniform sampling",
            "osmd-g",
            ("adaptive-osmd", "loss, batch 5"),
            ("uniform", "loss, batch 5"),
        ),
        Claim(
            "osmd",
            "MNIST, skewed sizes, batches of 1 (authors'): Adaptive-OSMD ends at a lower loss",
            "osmd-g-authors",
            ("adaptive-osmd, ā with 1/M", "loss, batch 1"),
            ("uniform", "loss, batch 1"),
        ),
    ]


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


def _delta() -> list[Claim]:
    mean = "its pair, plain mean"
    claims = [
        Claim(
            "delta",
            "toy: the plain mean of DELTA's preferred pair is nearer than importance sampling's",
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
    ]
    return claims + [
        Claim("delta", text, name, cell, other, side="above", **POINTS) for text, name, cell, other in cells
    ]


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


CLAIMS: tuple[Claim, ...] = (*_users(), *_osmd(), *_poc(), *_delta(), *_flics(), *_streams())
