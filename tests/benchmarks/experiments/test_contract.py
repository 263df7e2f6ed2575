"""What all experiments promise: a seed decides the result."""

import numpy as np
import pytest

from benchmarks.experiments import EXPERIMENTS

SHORT = {
    **{name: {"num_rounds": 12} for name in EXPERIMENTS if name.startswith("osmd-") and "-g" not in name[:6]},
    "osmd-gradient": {"num_rounds": 20},
    "osmd-fedavg": {"num_rounds": 20},
    "poc-toy": {},
    "poc-bounds": {"num_rounds": 20, "num_points": 8, "num_samples": 40},
    "poc-quadratic": {"num_rounds": 40},
    "poc-quadratic-100": {"num_rounds": 40},
    "poc-profile": {"num_rounds": 40, "num_points": 3, "num_samples": 20},
    "poc-synthetic": {"num_rounds": 4},
    "delta-toy": {"num_rounds": 20},
    "delta-variance": {"num_rounds": 20},
    "delta-floor": {"num_clients": 20},
    "delta-regression": {"num_rounds": 10, "noises": (20, 40)},
    "delta-regression-far": {"num_rounds": 10},
    "delta-regression-8-2": {"num_rounds": 10, "noises": (20,)},
    "delta-regression-200": {"num_rounds": 10, "noises": (20,)},
    "delta-extremes": {"num_rounds": 10},
    "delta-bounds": {},
    "delta-theorems": {"num_rounds": 50},
    "flics-variance": {"horizons": (10, 40)},
    "flics-sigma": {"horizons": (20, 40)},
    "flics-bound": {"num_rounds": 100},
}
"""Experiment that needs no data and no simulator -> arguments that make it short."""
SLOW = ("osmd-gradient", "osmd-fedavg")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in SHORT])
def test_an_experiment_is_a_function_of_its_seed(name):
    experiment = EXPERIMENTS[name]
    one, again, other = (experiment.run(seed, **SHORT[name]) for seed in (3, 3, 4))
    assert repr(one.cells) == repr(again.cells)  # NaN = NaN: a threshold that is not reached
    assert one.cells.keys() == other.cells.keys()
    assert repr(one.cells) != repr(other.cells)
    # A shorter run lacks the columns of late rounds.
    assert {row for row, _ in experiment.known} <= {row for row, _ in one.cells}
    assert "horizons" in SHORT[name] or experiment.known.keys() <= one.cells.keys()
    for panel, lines in one.curves.items():
        assert lines
        for line, curve in lines.items():
            assert curve.x.shape == curve.y.shape
            assert np.isfinite(curve.y[1:]).all()
            assert (curve.y[1:] > 0).all() or not experiment.log_y  # or the logarithmic axis loses it
            assert np.array_equal(curve.y, again.curves[panel][line].y, equal_nan=True)
            assert np.array_equal(curve.x, other.curves[panel][line].x)
