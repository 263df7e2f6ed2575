"""The page of slow clients says who is first, and of whom the seeds do not show that it is later."""

import re

import pytest

from benchmarks.results.files import Recorded
from benchmarks.results.first_to_accuracy import (
    BIAS,
    COSTS,
    DEFAULT,
    SECONDS,
    default_first,
    first,
    first_of,
    lag,
)
from benchmarks.results.tables import output_table


def recorded(**seconds):
    rows = {
        method.replace("_", "-"): {SECONDS: each, BIAS: [1.0] * len(each)} for method, each in seconds.items()
    }
    return Recorded("time-lognormal", "", "", "", "", "", {}, [1, 2, 3], [1.0] * 3, rows)


EXAMPLE = recorded(
    buffered_md=[100.0, 300.0, 200.0],
    buffered_forecast=[110.0, 320.0, 230.0],  # later in every seed: by 10, 20, 30
    fedbuff=[300.0, 100.0, 230.0],
    oort=[1.0, None, 1.0],  # first, if it had arrived
)


def test_the_first_is_the_least_mean_of_those_that_always_arrive():
    assert first_of(EXAMPLE) == "buffered-md"
    assert lag(EXAMPLE, "buffered-md").within


def test_a_difference_is_paired_by_seed():
    found = lag(EXAMPLE, "buffered-forecast")
    assert found.cost == 220
    assert found.behind.mean == 20
    assert found.behind.half == pytest.approx(4.303 * 10 / 3**0.5)  # less than between unpaired means
    assert found.within  # 24.8 > 20
    later = recorded(buffered_md=[100.0, 300.0, 200.0], buffered_forecast=[115.0, 320.0, 225.0])
    assert not lag(later, "buffered-forecast").within
    assert not lag(EXAMPLE, "oort").within


def test_the_section_has_a_row_for_each_setting_and_counts_them():
    lines = first({"time-lognormal": EXAMPLE})
    (row,) = [line for line in lines if line.startswith("| time-lognormal ")]
    assert re.sub(" +", " ", row) == (
        "| time-lognormal | `buffered-md` | 200 | **200** | **220 (+20, [-5, +45])** "
        "| **210 (+10, [-489, +509])** | not with every seed | 1.0 | 1.0 | 1.0 |"
    )
    assert lines[-1].endswith("in 1 of 1 settings.")
    slow = recorded(
        buffered_md=[500.0, 510.0, 520.0], buffered_forecast=[500.0] * 3, fedbuff=[90.0] * 3, oort=[99.0] * 3
    )
    assert first({"time-lognormal": slow})[-1].endswith("in 0 of 1 settings. Neither is in time-lognormal.")
    assert first({}) == []


def test_the_default_is_counted_by_cost_and_accuracy():
    steady = {f"{cost} to {level} %": [9.0, 9.1, 9.2] for cost in COSTS for level in (80, 90, 95)}
    rows = {
        "md": steady,
        DEFAULT: steady | {"MB to 80 %": [9.5, 9.6, 9.7], "rounds to 95 %": [None, 1.0, 1.0]},
        "never": {column: [None, 1.0, 1.0] for column in steady},
    }
    result = Recorded("real-mnist", "", "", "", "", "", {}, [1, 2, 3], [1.0] * 3, rows)
    lines = [re.sub(" +", " ", line) for line in default_first({"real-mnist": result})]
    assert lines[2] == (
        "| real-mnist | 2 of 3 (95 %: `md`) | 2 of 3 (80 %: `md`) | 3 of 3 | 3 of 3 | 3 of 3 |"
    )
    assert lines[-1] == "| all | 2 of 3 | 2 of 3 | 3 of 3 | 3 of 3 | 3 of 3 |"
    assert default_first({}) == []


def test_the_orders_over_real_processes_and_in_the_simulation_are_compared():
    output = {
        name: {"real_s": real, "simulated_s": simulated}
        for name, real, simulated in (
            ("uniform", [9.0, 8.0], [9.0, 9.0]),
            ("fedbuff", [2.0, 3.0], [1.0, 1.1]),
            ("oort", [1.0, 2.0], [1.0, None]),
            ("timed-md", [3.0, None], [2.0, 2.1]),
        )
    }
    lines = [re.sub(" +", " ", line) for line in output_table("time-to-accuracy", [output])]
    assert "| oort | 1, 2 | 1, |" in lines
    assert "Means, real: `oort` 1.5, `fedbuff` 2.5, `uniform` 8.5, `timed-md` not with every seed." in lines
    assert "| `uniform`, `fedbuff` | 3.46 (0.12 to 96.22) | 8.58 (4.68 to 15.72) | same order |" in lines
    assert "| `uniform`, `timed-md` | not with every seed | 4.39 (3.22 to 5.99) | other order |" in lines
    never = "| not with every seed | not apart in the simulation |"
    assert [line.split(" |")[0] for line in lines if line.endswith(never)] == [
        "| `uniform`, `oort`",
        "| `fedbuff`, `oort`",
        "| `oort`, `timed-md`",
    ]
    assert lines[-1].startswith("The simulation shows 3 of 6 pairs of methods apart")
    # A method that did not get there with every seed has no order.
    assert lines[-1].endswith("Over real processes, 1 of these have the same order.")
