"""The papers' experiments, and those of `cohort`: `cohort bench papers` runs them all.

Each module holds experiments of one paper and lists them in ``EXPERIMENTS``.
"""

from benchmarks.experiments import (
    cohort,
    delta,
    delta_mnist,
    flics,
    flics_figures,
    osmd,
    osmd_g,
    power_of_choice,
    power_of_choice_mnist,
    power_of_choice_synthetic,
)
from benchmarks.experiments.report import Experiment

SELECTION: dict[str, Experiment] = {
    each.name: each
    for module in (osmd, osmd_g, power_of_choice, power_of_choice_synthetic, delta, flics, cohort)
    for each in module.EXPERIMENTS
}
"""Those about selection alone, by name: streams, toys and convex problems, without the simulator."""

EXPERIMENTS: dict[str, Experiment] = SELECTION | {
    each.name: each
    for module in (power_of_choice_mnist, delta_mnist, flics_figures)
    for each in module.EXPERIMENTS
}
"""All experiments by name, in the order in which they are run."""
