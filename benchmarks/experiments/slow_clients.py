"""The benchmark of time to accuracy as recorded experiments, one for each federation with slow clients."""

from functools import partial
from math import isfinite, nan
from pathlib import Path

from benchmarks.experiments.report import Experiment, Outcome
from benchmarks.time_to_accuracy.federation import METHODS, Federation, Setting
from benchmarks.time_to_accuracy.simulated import BUDGET, SETTINGS, numbers

COLUMNS = {
    "to80_s": ("s to 80 %", 1),
    "to90_s": ("s to 90 %", 1),
    "to95_s": ("s to 95 %", 1),
    "to80_mb": ("MB to 80 %", 1),
    "to90_mb": ("MB to 90 %", 1),
    "to95_mb": ("MB to 95 %", 1),
    "final": ("final, %", 100),
    "worst": ("worst quarter, %", 100),
    "bias": ("bias, %", 100),
}
"""Name of a number that `numbers` returns -> (column of the table, factor that multiplies the number)."""


def run(name: str, seed: int, quick: bool = False) -> Outcome:
    """Return the numbers of all methods in the setting `name`. If `quick`, simulate a tenth of the time."""
    return _outcome(Federation(SETTINGS[name], seed), quick)


def run_mnist(seed: int, path: Path, quick: bool = False) -> Outcome:
    """Return the numbers of all methods with a perceptron on MNIST; `quick` simulates a tenth of the time."""
    return _outcome(Federation(Setting(task="mnist-mlp"), seed, data_dir=str(path.parent)), quick)


def _outcome(federation: Federation, quick: bool) -> Outcome:
    share = 0.1 if quick else 1.0
    found = numbers(federation, METHODS, share * BUDGET, share)
    return Outcome(
        {
            (method, column): factor * values[name] if isfinite(values[name]) else nan
            for method, values in found.items()
            for name, (column, factor) in COLUMNS.items()
        }
    )


ENDS = {"large and hard": "-hard", "small and easy": "-easy", "half available": "-half"}
EXPERIMENTS = (
    *(
        Experiment(
            f"time-{speeds}{ENDS.get(slow.removeprefix('slow are '), '')}", partial(run, setting), digits=1
        )
        for setting in SETTINGS
        for speeds, _, slow in [setting.partition(", ")]
    ),
    Experiment("time-mnist", run_mnist, digits=1, data="mnist.npz"),
)
