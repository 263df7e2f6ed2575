"""The load generator's devices are a real federation for one or two servers: every message is answered."""

import pytest

from benchmarks.devices.cluster import Settings
from benchmarks.devices.front_ends import POSTGRES, SQLITE, compare, wait
from benchmarks.devices.measure import measure
from benchmarks.devices.postgres import programs

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_simulated_devices_answer_every_message_of_a_real_server():
    results = measure(Settings(nodes=6, per_round=3, rounds=2, megabytes=0.1, layers=2))
    assert results["lost"] == results["away"] == results["refused"] == 0
    counts = results["counts"]
    assert counts["received"] >= 6 + 2 * 3  # six questions for the status, and two measured rounds
    assert counts["online"] == 6
    assert not [name for name in counts if name.startswith("failed") or name == "died"]
    assert 0 < results["round_s"] <= results["round_max_s"]
    assert results["superlink_cpu_s_per_round"] > 0
    assert results["superlink_mb"] > 50


def test_the_devices_of_two_front_ends_answer_every_message():
    if programs() is None:
        pytest.skip("PostgreSQL is not installed")
    sqlite, shared = compare([2], nodes=6, per_round=[3], rounds=4, turns=1)
    assert [(each["database"], each["front_ends"]) for each in (sqlite, shared)] == [
        (SQLITE, 1),
        (POSTGRES, 2),
    ]
    for each in (sqlite, shared):
        assert each["lost"] == each["away"] == each["refused"] == 0
        assert all(cpu > 0 for cpu in each["superlinks_cpu_s"])
        assert each["round_s"] > 0
        assert each["apps_cpu_s"] > 0
        # Each message has 1 MB: 6 a round. On a busy machine the first look may come one or two rounds late.
        assert each["loopback_mb"] > 3
    assert sqlite["postgres_cpu_s"] == sqlite["statements"] == 0
    assert shared["postgres_cpu_s"] > 0
    assert shared["statements"] > 3
    assert 0 < shared["lock_share"] < 1
    (waiting,) = wait([2], nodes=6, seconds=2, processes=2)
    assert waiting["offline"] == 0
    assert waiting["statements_per_s"] > 0
