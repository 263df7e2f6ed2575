"""The experiments of papers, and experiments about this project's own methods.

`cohort bench papers` runs them all, except those whose data or GPU is missing. The folders `delta`, `flics`,
`osmd` and `power_of_choice` hold the experiments of one paper each. `forecast`, `robustness` and
`slow_clients` are about this project's own methods. Each module with experiments lists them in
``EXPERIMENTS``.
"""

from benchmarks.experiments import slow_clients
from benchmarks.experiments.delta import bounds_measured as delta_bounds
from benchmarks.experiments.delta import mnist as delta_mnist
from benchmarks.experiments.delta import mnist_cnn as delta_mnist_cnn
from benchmarks.experiments.delta import other_data as delta_other_data
from benchmarks.experiments.delta import regression as delta_regression
from benchmarks.experiments.delta import synthetic as delta_synthetic
from benchmarks.experiments.flics import bounds_measured as flics_bounds
from benchmarks.experiments.flics import cifar_100, table_1, variance_above_optimum
from benchmarks.experiments.forecast import settings as forecast_settings
from benchmarks.experiments.forecast import streams
from benchmarks.experiments.osmd import bounds_measured, personalised, section_f, section_g
from benchmarks.experiments.power_of_choice import bounds_measured as power_of_choice_bounds
from benchmarks.experiments.power_of_choice import mnist as power_of_choice_mnist
from benchmarks.experiments.power_of_choice import other_data as power_of_choice_other_data
from benchmarks.experiments.power_of_choice import quadratics
from benchmarks.experiments.power_of_choice import synthetic as power_of_choice_synthetic
from benchmarks.experiments.report import Experiment
from benchmarks.experiments.robustness import liars, report_noise

_WITHOUT_SIMULATOR = (
    section_f,
    section_g,
    personalised,
    bounds_measured,
    quadratics,
    power_of_choice_bounds,
    power_of_choice_synthetic,
    delta_synthetic,
    delta_regression,
    delta_bounds,
    variance_above_optimum,
    flics_bounds,
    streams,
    forecast_settings,
    report_noise,
)
_WITH_SIMULATOR = (
    power_of_choice_mnist,
    power_of_choice_other_data,
    delta_mnist,
    delta_mnist_cnn,
    delta_other_data,
    table_1,
    cifar_100,
    slow_clients,
    liars,
)

SELECTION: dict[str, Experiment] = {
    each.name: each for module in _WITHOUT_SIMULATOR for each in module.EXPERIMENTS
}
"""The experiments that need no simulator, by name. They are about streams of norms, small
examples and convex problems."""

EXPERIMENTS: dict[str, Experiment] = SELECTION | {
    each.name: each for module in _WITH_SIMULATOR for each in module.EXPERIMENTS
}
"""All experiments by name, in the order in which they run."""

LISTED_IN: dict[str, str] = {
    each.name: module.__name__
    for module in (*_WITHOUT_SIMULATOR, *_WITH_SIMULATOR)
    for each in module.EXPERIMENTS
}
"""The module that lists each experiment, by the experiment's name."""
