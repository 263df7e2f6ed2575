"""Power-of-Choice on MNIST and Fashion-MNIST: Tables 1 and 2, Figures 4, 5, 9 and 12 to 16, appendices E, G.

Most experiments on MNIST are shorter than those on Fashion-MNIST; only `poc-mnist-dropout` has dropout.
"""

import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.experiments.methods import OWN_DRAWS
from benchmarks.experiments.power_of_choice.mnist_training import Case, Trial, make_federation, train
from benchmarks.experiments.power_of_choice.quadratics import RANDOM
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome

WINDOW = 40
"""The accuracy at a round is the mean of the `WINDOW` rounds up to it, since single values vary much."""


def _accuracy_at(curve: Curve, round: int) -> float:
    return float(curve.y[(curve.x > round - WINDOW) & (curve.x <= round)].mean())


def run(
    seed: int,
    file: Path,
    *,
    cases: tuple[Case, ...],
    trials: tuple[Trial, ...],
    targets: tuple[float, ...],
    early: tuple[int, ...] = (80,),
    timed: bool = False,
    quick: bool = False,
) -> Outcome:
    """Train all trials in all cases.

    Each case is a group of rows, and each trial a row, which is compared with the trial "rand". For each of
    the accuracies `targets` in %, there is a column with the first round that reaches it (R60); accuracies
    are compared at the rounds `early` and the last. If `timed`, there is a column t_comp, see
    `mnist_training.Clock`.
    """
    if quick:
        cases = tuple(each._replace(num_rounds=WINDOW) for each in cases)
    cells: dict[Cell, float] = {}
    accuracy: dict[str, dict[str, Curve]] = {}
    loss: dict[str, dict[str, Curve]] = {}
    for case in cases:
        federation = make_federation(file, seed, case.alpha)
        tracks = {trial.label: train(federation, case, trial, seed) for trial in trials}
        for label, track in tracks.items():
            row = f"{case.name}: {label}" if case.name else label
            last = track.accuracy.x[-1]
            for target in targets:
                first = track.accuracy.first(track.accuracy.y >= target)
                # A trial that ends early might still have reached the target, so "never" would be wrong.
                if last == case.num_rounds or not math.isnan(first):
                    cells[row, f"R{target:g}"] = first
            if timed:
                cells[row, "t_comp, ms"] = 1000 * track.seconds
            for at in (*(round for round in early if round < case.num_rounds), case.num_rounds):
                if at <= last:
                    own = _accuracy_at(track.accuracy, at)
                    cells[row, f"accuracy at {at}"] = own
                    cells[row, f"above rand's at {at}"] = own - _accuracy_at(tracks[RANDOM].accuracy, at)
        title = case.name or f"α = {case.alpha:g}"
        accuracy[f"test accuracy, %: {title}"] = {label: track.accuracy for label, track in tracks.items()}
        loss[f"training loss, nats: {title}"] = {label: track.loss for label, track in tracks.items()}
    return Outcome(cells, {**accuracy, **loss})


_RAND = Trial(RANDOM, "md")
_POW = Trial("pow-d, d=6", "pow-d", {"num_candidates": 6})
_POW_20 = _POW._replace(label="pow-d, d=20", settings={"num_candidates": 20})
_CPOW = Trial("cpow-d, d=6", "cpow-d", {"num_candidates": 6})
_RPOW = Trial("rpow-d, d=50", "rpow-d", {"num_candidates": 50})
_AFL = Trial("afl", "afl")
_RAND_10 = Trial("rand, C=.1", "md", clients_per_round=10, num_rounds=160)
TABLE = (_RAND_10, _RAND, _POW, _CPOW, _RPOW, _AFL)
BESIDE = (
    Trial("adapow-d, d=12→3", "adapow-d", {"num_candidates": 12, "halve_every": 100}),
    Trial("uniform, q=pK/m", "uniform", {"replacement": False}, num_rounds=160),
    _POW._replace(
        label="pow-d, d=6, q∝p", settings={"num_candidates": 6, "averaging": "sizes"}, num_rounds=160
    ),
    Trial("forecast", "forecast", OWN_DRAWS),
)
DROPOUT = 0.5
"""The rate of the dropout. It is ours: the paper gives none."""
_OTHERS = (_CPOW, _RPOW, _AFL)
_SEVERAL = (_POW, _POW._replace(label="pow-d, d=12", settings={"num_candidates": 12}), _POW_20)
MANY = tuple(
    trial._replace(clients_per_round=10)
    for trial in (
        _RAND,
        _POW_20,
        _CPOW._replace(label="cpow-d, d=20", settings={"num_candidates": 20}),
        _RPOW,
        _AFL,
    )
)
"""The trials of appendix G.5, with 10 clients a round.

The paper does not give d for this appendix. We use d = 20, twice the number of selected clients (50 for
rpow-d, as in `TABLE`). With 3 selected clients, the paper has d = 6.
"""


class _Images(NamedTuple):
    """A data set."""

    name: str
    targets: tuple[float, ...]  # see `run`; on MNIST the paper's 60 % is reached soon, so 85 % is added
    dropout: float = 0.0


_MNIST = _Images("mnist", (60.0, 85.0))
_FASHION = _Images("fashion-mnist", (60.0,), DROPOUT)
_BOTH = ((0.3, "α=.3"), (2.0, "α=2"))
_THREE = ((2.0, "α=2"), (3.0, "α=3"), (0.3, "α=.3"))
"""The values of α in the paper's figures, and their labels. For clients in turns, the paper prints α = 2 and
3. The 3 may be a misprint for .3, the value of its other experiments, so all three are run."""


def _experiment(images: _Images, name: str, targets: tuple[float, ...] = (), **settings: Any) -> Experiment:
    return Experiment(
        f"poc-{images.name}{name}",
        functools.partial(run, targets=targets or images.targets, **settings),
        seeds=3,
        digits=1,
        data=f"{images.name}.npz",
    )


def _tables(images: _Images) -> tuple[Experiment, ...]:
    """Return the experiments of Tables 1 and 2 on a data set."""
    cases = (Case(0.3, 400, dropout=images.dropout),), (Case(2.0, 160, dropout=images.dropout),)
    trials = (*TABLE, *BESIDE), (_RAND_10._replace(num_rounds=80), *TABLE[1:])
    return (
        _experiment(images, "", cases=cases[0], trials=trials[0], early=(80, 160), timed=True),
        _experiment(images, "-alpha2", cases=cases[1], trials=trials[1], timed=True),
    )


def _on_fashion(
    name: str, trials: tuple[Trial, ...], alphas: tuple[tuple[float, str], ...] = _BOTH, **case: Any
) -> Experiment:
    """Return an experiment on Fashion-MNIST over 400 rounds; its cases share the fields in `case`."""
    cases = tuple(Case(alpha, 400, name=label, dropout=DROPOUT, **case) for alpha, label in alphas)
    return _experiment(_FASHION, name, cases=cases, trials=trials)


_shorter = functools.partial(_experiment, _MNIST, targets=(60.0, 80.0))

EXPERIMENTS = (
    *_tables(_MNIST),
    _experiment(
        _MNIST, "-alpha.1", targets=(60.0, 75.0), cases=(Case(0.1, 250),), trials=(_RAND, _POW, _RPOW, _AFL)
    ),
    _shorter(
        "-d", cases=tuple(Case(alpha, 160, name=name) for alpha, name in _BOTH), trials=(_RAND, *_SEVERAL)
    ),
    _shorter("-c.1", cases=tuple(Case(alpha, 80, name=name) for alpha, name in _BOTH), trials=MANY),
    _shorter(
        "-in-turns",
        cases=tuple(Case(alpha, 120, in_turns=True, name=name) for alpha, name in _THREE),
        trials=(_RAND, _POW, _RPOW),
    ),
    _shorter(
        "-local",
        cases=tuple(
            Case(alpha, 80, **{setting: number}, name=f"{letter}={number}, {name}")  # type: ignore[arg-type]
            for letter, setting, number in (("b", "batch_size", 128), ("τ", "local_steps", 100))
            for alpha, name in _BOTH
        ),
        trials=(_RAND, _POW, _RPOW),
    ),
    _experiment(_MNIST, "-dropout", cases=(Case(0.3, 160, dropout=DROPOUT),), trials=(_RAND, _POW, *_OTHERS)),
    *_tables(_FASHION),
    _on_fashion("-d", (_RAND, *_SEVERAL, _AFL)),
    _on_fashion("-in-turns", (_RAND, _POW, _RPOW), _THREE, in_turns=True),
    _on_fashion("-c.1", MANY),
    _on_fashion("-b128", (_RAND, *_SEVERAL, *_OTHERS), batch_size=128),
    _on_fashion("-tau100", (_RAND, *_SEVERAL, *_OTHERS), local_steps=100),
)
