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


_NOTE = (
    "The buffered methods keep 6 of 60 clients busy; the other methods select 6 in a round. All seconds "
    "are simulated. "
    "`benchmarks.time_to_accuracy` describes the methods. Seconds and megabytes are those until 80, 90 and "
    "95 % of the best accuracy of any method. With 5 seeds, a 95 % interval reaches 1.24 standard "
    "deviations to each side of the mean. The clients are cut into quarters by speed; the worst quarter is "
    "the one with the least accuracy. The bias is that of the aggregate, in percent of the error of one "
    "round (`benchmarks.time_to_accuracy.bias`). An unbiased method has values around 0."
)
_NAMES = {
    "lognormal": "time-lognormal",
    "lognormal, slow are large and hard": "time-lognormal-hard",
    "lognormal, slow are small and easy": "time-lognormal-easy",
    "lognormal, half available": "time-lognormal-half",
    "devices": "time-devices",
    "devices, slow are large and hard": "time-devices-hard",
    "devices, slow are small and easy": "time-devices-easy",
    "devices, half available": "time-devices-half",
}
EXPERIMENTS = (
    *(
        Experiment(
            name=_NAMES[setting],
            title=f"time to accuracy on digits, speeds {setting}",
            source="no paper; `cohort bench time-to-accuracy` prints the same with intervals",
            run=partial(run, setting),
            note=_NOTE,
            digits=1,
        )
        for setting in SETTINGS
    ),
    Experiment(
        name="time-mnist",
        title="time to accuracy of a perceptron on MNIST, speeds lognormal",
        source="no paper; `benchmarks.experiments.slow_clients`",
        run=run_mnist,
        note=_NOTE,
        digits=1,
        data="mnist.npz",
    ),
)
