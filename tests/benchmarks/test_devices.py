"""The load generator's devices are a real federation for the server: every message is answered."""

import pytest

from benchmarks.devices.cluster import Settings
from benchmarks.devices.measure import measure

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
