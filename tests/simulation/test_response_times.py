"""Response times, dropouts and deadlines."""

import re

import numpy as np
import pytest

from simulation.response_times import ResponseTimes, arrivals

CLIENTS = np.arange(20_000)


def test_a_clients_time_does_not_depend_on_other_clients():
    times = ResponseTimes(1000, seed=3, dropout=0.3)
    all_of_them = times.seconds(7)
    assert all_of_them.shape == (1000,)
    few = np.array([900, 3, 3, 41])
    np.testing.assert_array_equal(times.seconds(7, few), all_of_them[few])
    np.testing.assert_array_equal(ResponseTimes(950, seed=3, dropout=0.3).seconds(7), all_of_them[:950])
    assert (times.seconds(8) != all_of_them).any()
    assert (ResponseTimes(1000, seed=4, dropout=0.3).seconds(7) != all_of_them).any()


def test_times_are_lognormal_with_a_fixed_and_a_varying_factor():
    times = ResponseTimes(CLIENTS.size, seed=1, median=20, sigma=0.5, jitter=0.2)
    logs = np.log([times.seconds(number) for number in (1, 2, 3)])
    assert np.exp(np.median(logs)) == pytest.approx(20, rel=0.02)
    np.testing.assert_allclose(logs.std(axis=1), (0.5**2 + 0.2**2) ** 0.5, rtol=0.03)
    shared = np.cov(logs)[np.triu_indices(3, 1)]
    np.testing.assert_allclose(shared, 0.5**2, rtol=0.05)
    # Normal: skewness 0, kurtosis 3.
    standard = (logs[0] - logs[0].mean()) / logs[0].std()
    assert (standard**3).mean() == pytest.approx(0, abs=0.1)
    assert (standard**4).mean() == pytest.approx(3, abs=0.2)


def test_a_heavy_tail_is_pareto():
    slow = ResponseTimes(CLIENTS.size, seed=2, median=1, tail=1.5, jitter=0).seconds(1)
    assert np.median(slow) == pytest.approx(1, rel=0.05)
    for far in (2.0, 10.0):
        # P(seconds > s) = (s / smallest)^-1.5, and 1/2 at the median.
        assert (slow > far).mean() == pytest.approx(far**-1.5 / 2, rel=0.15)


def test_time_is_proportional_to_work():
    work = np.linspace(0, 5, 50)
    times = ResponseTimes(50, work=work, sigma=0, jitter=0, median=3)
    np.testing.assert_allclose(times.seconds(1), 3 * work)
    assert times.typical.tolist() == times.seconds(9).tolist()


def test_dropouts_are_drawn_anew_each_round():
    chances = np.repeat([0.0, 0.2, 1.0], 5000)
    times = ResponseTimes(15_000, seed=5, dropout=chances)
    gone = np.isinf([times.seconds(number) for number in (1, 2, 3, 4)])
    shares = gone.reshape(4, 3, 5000).mean(axis=2)
    np.testing.assert_allclose(shares, np.tile([0, 0.2, 1], (4, 1)), atol=0.03)
    twice = (gone[0] & gone[1])[5000:10_000].mean()
    assert twice == pytest.approx(0.04, abs=0.015)
    # Slow and fast clients drop out equally often.
    middle = times.typical[5000:10_000]
    assert abs(np.corrcoef(gone[0][5000:10_000], middle)[0, 1]) < 0.06


def test_a_deadline_or_enough_replies_end_a_round():
    seconds = np.array([5.0, 1.0, np.inf, 3.0])
    for options, in_time, end in (
        ({}, [1, 1, 0, 1], np.inf),
        ({"deadline": 10.0}, [1, 1, 0, 1], 10.0),
        ({"deadline": 3.0}, [0, 1, 0, 1], 3.0),
        ({"enough": 2}, [0, 1, 0, 1], 3.0),
        ({"enough": 2, "deadline": 2.0}, [0, 1, 0, 0], 2.0),
        ({"enough": 9, "deadline": 7.0}, [1, 1, 0, 1], 7.0),
    ):
        answered, waited = arrivals(seconds, **options)
        assert (answered.astype(int).tolist(), waited) == (in_time, end)
    assert arrivals(seconds[[0, 1]])[1] == 5.0
    assert arrivals(np.zeros(0), deadline=4.0)[1] == 0
    with pytest.raises(ValueError, match="enough = 0: must be >= 1"):
        arrivals(seconds, enough=0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_clients": 0}, "num_clients = 0: must be >= 1"),
        ({"median": 0.0}, "median = 0.0: must be > 0"),
        ({"tail": -1.0}, "tail = -1.0: must be > 0"),
        ({"sigma": -0.1}, "sigma = -0.1: must be >= 0"),
        ({"jitter": np.nan}, "jitter = nan: must be >= 0"),
        ({"work": [1.0]}, "work = [1.]: must be a number >= 0 for each of 2"),
        ({"work": [1.0, -1.0]}, "work = [ 1. -1.]: must be"),
        ({"dropout": 1.1}, "dropout = 1.1: must be in [0, 1]"),
    ],
)
def test_an_invalid_setting_is_refused(settings, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        ResponseTimes(**{"num_clients": 2, **settings})


def test_an_invalid_round_or_client_is_refused():
    with pytest.raises(ValueError, match="round = 0: must be >= 1"):
        ResponseTimes(2).seconds(0)
    for clients in ([-1], [0, 2]):
        with pytest.raises(ValueError, match=re.escape("must be from 0 to 1")):
            ResponseTimes(2).seconds(1, clients)
    assert ResponseTimes(2).seconds(1, []).size == 0
