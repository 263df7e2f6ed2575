"""The experiments of papers, and experiments about this project's own methods.

`cohort bench papers` runs them all, except those whose data or GPU is missing. The folders `delta`, `flics`,
`osmd` and `power_of_choice` hold the experiments of one paper each; the others are about this project's own
methods. Each module with experiments lists them in ``EXPERIMENTS``.
"""

from importlib import import_module

from benchmarks.experiments.report import Experiment

_WITHOUT_SIMULATOR = (
    "osmd.section_f",
    "osmd.section_g",
    "osmd.personalised",
    "osmd.bounds_measured",
    "power_of_choice.quadratics",
    "power_of_choice.bounds_measured",
    "power_of_choice.synthetic",
    "delta.synthetic",
    "delta.regression",
    "delta.bounds_measured",
    "flics.variance_above_optimum",
    "flics.bounds_measured",
    "forecast.streams",
    "forecast.settings",
    "robustness.report_noise",
)
_WITH_SIMULATOR = (
    "power_of_choice.mnist",
    "power_of_choice.other_data",
    "delta.mnist",
    "delta.other_data",
    "flics.table_1",
    "flics.cifar_100",
    "draws",
    "real_tasks",
    "hours",
    "slow_clients",
    "ablations",
    "robustness.liars",
)


def _experiments(module: str) -> dict[str, Experiment]:
    return {each.name: each for each in import_module(f"{__name__}.{module}").EXPERIMENTS}


SELECTION = {name: each for module in _WITHOUT_SIMULATOR for name, each in _experiments(module).items()}
"""The experiments that need no simulator, by name. They are about streams of norms, small
examples and convex problems."""
EXPERIMENTS = SELECTION | {
    name: each for module in _WITH_SIMULATOR for name, each in _experiments(module).items()
}
"""All experiments by name, in the order in which they run."""
LISTED_IN = {
    name: f"{__name__}.{module}"
    for module in (*_WITHOUT_SIMULATOR, *_WITH_SIMULATOR)
    for name in _experiments(module)
}
"""The module that lists each experiment, by the experiment's name."""
