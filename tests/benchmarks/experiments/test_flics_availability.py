"""The processes of the FLICS experiments: tables of group counts, and synthetic traces."""

import numpy as np
import pytest

from benchmarks.experiments.flics.availability import PROCESSES, markov_counts, sessions
from simulation.availability.groups import diurnal_counts, uniform_counts
from simulation.availability.trace_file import Recording

MEANS = np.array([1.0, 8.0, 30.0, 60.0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uniform", [1, 8, 30, 60]),
        ("Poisson", MEANS),
        ("cyclic", (MEANS + MEANS[::-1]) / 2),
        ("Markov", MEANS / 2),
        ("diurnal", MEANS),
    ],
)
def test_the_mean_counts(name, expected):
    """Within 15 %: groups that sleep for many rounds vary most."""
    drawn = PROCESSES[name](MEANS, 24 * 500, np.random.default_rng(2))
    np.testing.assert_allclose(drawn.mean(axis=0), expected, rtol=0.15)


def test_the_distributions_of_the_counts():
    rng = np.random.default_rng(3)
    uniform = uniform_counts(MEANS, 2000, rng)
    assert uniform.min(axis=0).tolist() == [1, 4, 15, 30]
    assert uniform.max(axis=0).tolist() == [1, 12, 45, 90]
    seldom = uniform_counts(np.array([0.0, 0.3, 0.6, 0.7]), 4000, rng)
    assert seldom.max(axis=0).tolist() == [0, 1, 1, 1]
    np.testing.assert_allclose(seldom.mean(axis=0), [0, 0.3, 0.6, 1], atol=0.04)  # 1 is from .35 to 1.05
    awake = markov_counts(np.full(3, 50.0), 4000, rng) > 0
    assert abs((awake[1:] != awake[:-1]).mean() - 0.1) < 0.02
    day = diurnal_counts(np.full(4, 100.0), 24 * 50, rng).reshape(50, 24, 4).mean(axis=0)
    assert day.argmax(axis=0) == pytest.approx([6, 0, 18, 12], abs=2)


def test_the_sessions_of_a_group_have_its_share_of_the_time():
    groups = np.repeat([0, 1], 200)
    rows = sessions(groups, np.array([0.1, 0.5]), 24 * 20, np.random.default_rng(4))
    assert rows == sorted(rows)
    last = {}
    for client, start, end in rows:
        assert last.get(client, -np.inf) <= start < end
        last[client] = end
    recording = Recording(rows, whole_bins=False, origin=0.0, num_clients=400)
    present = np.array([recording.available(round) for round in range(24 * 20)])
    shares = present.reshape(-1, 2, 200).mean(axis=(0, 2))
    np.testing.assert_allclose(shares, [0.1, 0.5], atol=0.05)
