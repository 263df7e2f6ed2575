"""Measured speeds of devices in FedScale's form, as JSON."""

import json
import re

import numpy as np
import pytest

from simulation.measured_speeds import read_device_speeds

DEVICES = {
    "10": {"computation": 200.0, "communication": 4_000, "model": "a phone"},
    "2": {"computation": 50, "communication": 16_000.0},
    "7": {"computation": 100.0, "communication": 8_000.0},
}


def written(folder, content):
    file = folder / "capacity.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_the_seconds_are_those_of_computation_and_transfer(tmp_path):
    """Devices come in the order 2, 7, 10: 3 * 20 * 50 ms = 3 s, and 2 MB at 16,000 kbit/s = 1 s."""
    speeds = read_device_speeds(written(tmp_path, DEVICES))
    np.testing.assert_allclose(speeds.seconds(20, 2.0), [3 + 1, 6 + 2, 12 + 4])


def test_a_device_is_used_twice_only_when_all_are_used_once(tmp_path):
    speeds = read_device_speeds(written(tmp_path, DEVICES))
    first = speeds.assigned(7, seed=1)
    assert sorted(np.unique(first.milliseconds, return_counts=True)[1].tolist()) == [2, 2, 3]
    assert (first.kilobits * first.milliseconds == 800_000).all()  # both speeds are those of one device
    np.testing.assert_array_equal(first.milliseconds, speeds.assigned(7, seed=1).milliseconds)
    orders = {tuple(speeds.assigned(3, seed).milliseconds) for seed in range(20)}
    assert len(orders) > 3


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "capacity.json: must be a JSON file: "),
        ("[" * 100_000, "capacity.json: must be a JSON file: "),
        ([], "must be an object with an entry for each device, at least one"),
        ({}, "must be an object with an entry for each device, at least one"),
        ({"a": 3}, "device 'a': must be an object with computation and communication"),
        ({"a": {"computation": 1}}, "device 'a': communication = None: must be a number of kilobits a"),
        ({"a": {"computation": 0, "communication": 1}}, "device 'a': computation = 0: must be a number of"),
        ({"a": {"computation": True, "communication": 1}}, "computation = True: must be a number"),
        ('{"a": {"computation": NaN, "communication": 1}}', "computation = nan: must be a number"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, content, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        read_device_speeds(written(tmp_path, content))
