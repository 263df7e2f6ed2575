"""The claims about what a user gains, each with the cells that decide it."""

from __future__ import annotations

from benchmarks.results.claims import POINTS, Claim


def _users() -> list[Claim]:
    regret = "`forecast` has less regret than uniform sampling where norms differ (OSMD's section F, σ = {})"
    return [
        *(
            Claim("users", regret.format(s), "osmd-f2", ("forecast, cold", f"regret, σ={s}"), 1.0)
            for s in (1, 3, 10)
        ),
        Claim(
            "users",
            "`forecast` ends at a lower loss than uniform sampling (OSMD's section F, σ = 10)",
            "osmd-f2",
            ("forecast, cold", "final loss, σ=10"),
            1.0,
        ),
        Claim(
            "users",
            "`forecast` ends at a lower loss than uniform sampling where norms differ more (section F, s_m "
            "Σ as standard deviation, σ = 10)",
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
            "Power-of-Choice (15 candidates of 30 clients) needs fewer rounds than random selection to a "
            "tenth of the initial gap",
            "poc-quadratic",
            ("d=15", "rounds to 0.1"),
            ("rand", "rounds to 0.1"),
        ),
        Claim(
            "users",
            "fixed quotas have more variance than FLICS where groups come and go (Markov)",
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


CLAIMS = tuple(_users())
