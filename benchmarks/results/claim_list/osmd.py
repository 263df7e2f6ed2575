"""The claims of the OSMD paper, each with the cells that decide it."""

from __future__ import annotations

from benchmarks.results.claims import DECADES, Claim


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
                "with 100 times the printed rate Adaptive-OSMD has less regret than uniform (section F, σ "
                f"= {s})",
                "osmd-f1",
                ("adaptive-osmd × 100", f"regret, σ={s}"),
                1.0,
            )
            for s in (1, 3, 10)
        ),
        # The next three claims are about the printed rate. In the first and the third, the selector knows the
        # norms of all clients before training.
        Claim(
            "osmd",
            "with the printed rate Adaptive-OSMD's regret stays above .95 times uniform's (section F, σ = "
            "10)",
            "osmd-f1",
            ("adaptive-osmd", "regret, σ=10"),
            1.0,
            side="above",
            limit=0.95,
        ),
        Claim(
            "osmd",
            "with the printed rate Adaptive-OSMD's regret stays above .95 times uniform's (MNIST, batches "
            "of 5)",
            "osmd-g",
            ("adaptive-osmd", "regret, batch 5"),
            1.0,
            side="above",
            limit=0.95,
        ),
        Claim(
            "osmd",
            "if it asks for norms first, Adaptive-OSMD's regret is below .95 times uniform's (MNIST, batches "
            "of 5)",
            "osmd-g",
            ("adaptive-osmd, asked", "regret, batch 5"),
            1.0,
            limit=0.95,
        ),
        Claim(
            "osmd",
            "the best p, as the text defines it, ends at a lower loss than uniform (section F, σ = 10)",
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
            "MNIST, skewed sizes, batches of 1 (authors'): Adaptive-OSMD ends at a lower loss than uniform "
            "sampling",
            "osmd-g-authors",
            ("adaptive-osmd, ā with 1/M", "loss, batch 1"),
            ("uniform", "loss, batch 1"),
        ),
    ]


def _osmd_theory() -> list[Claim]:
    gradient = "log10 mean gradient²"
    return [
        Claim(
            "osmd",
            "robust to α: α = .01 has at most 1.1 times the regret of α = .4 (100 times the rate of α = .4, "
            "σ = 10)",
            "osmd-f3",
            ("α = 0.01, fast", "regret, σ=10"),
            ("α = 0.4, fast", "regret, σ=10"),
            limit=1.1,
        ),
        Claim(
            "osmd",
            "draws with replacement end at a lower loss than draws without (100 times the rate, σ = 10)",
            "osmd-f4",
            ("adaptive-osmd × 100, with", "final loss, σ=10"),
            ("adaptive-osmd × 100, without", "final loss, σ=10"),
        ),
        Claim(
            "osmd",
            "with 100 times the rate Adaptive-OSMD has less regret than a fixed p by Lipschitz constants (ν "
            "= 10)",
            "osmd-f5",
            ("adaptive-osmd × 100", "regret, ν=10"),
            ("lipschitz-is", "regret, ν=10"),
        ),
        Claim(
            "osmd",
            "with 100 times the rate Adaptive-OSMD ends at a lower loss than a fixed p by Lipschitz "
            "constants (ν = 10)",
            "osmd-f5",
            ("adaptive-osmd × 100", "log10 loss, ν=10"),
            ("lipschitz-is", "log10 loss, ν=10"),
            **DECADES,
        ),
        Claim(
            "osmd",
            "the sum of ā² converges: it grows with a power of t below .05 (σ = 10)",
            "osmd-f6",
            ("σ = 10", "sum of ā²: power of t"),
            0.0,
            scale="difference",
            limit=0.05,
        ),
        Claim(
            "osmd",
            "MNIST, balanced sizes, batches of 5: Adaptive-OSMD's loss is at most 1.01 times uniform's",
            "osmd-g-balanced",
            ("adaptive-osmd", "loss, batch 5"),
            ("uniform", "loss, batch 5"),
            limit=1.01,
        ),
        *(
            Claim(
                "osmd",
                f"personal models: two samplers with {draws} have less squared error than one for both",
                "osmd-personalised",
                (row, "squared error"),
                ("adaptive-osmd × 100, one sampler", "squared error"),
            )
            for draws, row in (
                ("half the draws each", "personalised-osmd × 100"),
                ("as many draws each", "personalised-osmd × 100, 2K draws"),
            )
        ),
        Claim(
            "osmd",
            "the bound of the later version is above the regret (printed rate, σ = 10)",
            "osmd-bounds",
            ("adaptive-osmd, v2, σ=10", "bound, best fixed p ≥ α/M"),
            0.0,
            side="above",
            **DECADES,
        ),
        Claim(
            "osmd",
            "the bound of Theorem 9 is above the mean squared gradient (σ = 10)",
            "osmd-gradient",
            ("adaptive-osmd, v2, σ=10", "log10 bound, Theorem 9"),
            ("adaptive-osmd, v2, σ=10", gradient),
            side="above",
            **DECADES,
        ),
        Claim(
            "osmd",
            "Adaptive-OSMD's mean squared gradient is below uniform sampling's (100 times the rate, σ = 10)",
            "osmd-gradient",
            ("adaptive-osmd × 100, σ=10", gradient),
            ("uniform, σ=10", gradient),
            **DECADES,
        ),
        Claim(
            "osmd",
            "FedAvg: the bound of the later version's Theorem 9 is above the mean squared gradient (σ = 10)",
            "osmd-fedavg",
            ("adaptive-osmd, v2, σ=10", "log10 bound, Theorem 9"),
            ("adaptive-osmd, v2, σ=10", gradient),
            side="above",
            **DECADES,
        ),
        Claim(
            "osmd",
            "ζ² of the best fixed p is below that of uniform sampling (σ = 10)",
            "osmd-bounds",
            ("ζ², σ=10", "best fixed / uniform"),
            1.0,
        ),
    ]


CLAIMS = (*_osmd(), *_osmd_theory())
