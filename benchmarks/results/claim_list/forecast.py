"""The claims about `forecast` on streams of norms, each with the cells that decide it."""

from __future__ import annotations

from benchmarks.results.claims import Claim


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


CLAIMS = tuple(_streams())
