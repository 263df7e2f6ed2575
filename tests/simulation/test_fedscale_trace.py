"""Behaviour traces of devices in FedScale's form, as JSON."""

import json
import re

import numpy as np
import pytest

from simulation.availability import create
from simulation.availability.trace_file import Recording, read_trace

HOUR = 3600
DEVICES = {
    "10": {"active": [0, 7200], "inactive": [5400, 10800], "finish_time": 14400, "model": "a phone"},
    "2": {"active": [1800], "inactive": [3600], "finish_time": 7200, "duration": 1800},
    "7": {"active": [], "inactive": [], "finish_time": 14400},
}


def written(folder, content):
    file = folder / "behaviour.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_devices_repeat_after_their_own_period(tmp_path):
    """Devices are numbered 2, 7, 10. Device 2 has half the period of the others, and comes twice."""
    rows = read_trace(written(tmp_path, DEVICES))
    assert sorted(map(tuple, rows.tolist())) == [
        (0, 1800, 3600),
        (0, 9000, 10800),
        (1, 0, 0),
        (2, 0, 5400),
        (2, 7200, 10800),
    ]


def test_a_trace_replays_the_devices(tmp_path):
    recording = Recording(read_trace(written(tmp_path, DEVICES)), bin_length=HOUR)
    assert (recording.num_clients, recording.num_bins) == (3, 3)
    process = create("trace", 3, recording=recording, assign="same")
    assert [process.available(round).tolist() for round in (1, 2, 3, 4)] == [[0, 2], [2], [0, 2], [0, 2]]
    np.testing.assert_allclose(recording.shares(), [2 / 3, 0, 1])


def test_an_activity_beyond_the_end_of_the_longest_is_cut(tmp_path):
    devices = {
        "a": {"active": [0], "inactive": [4], "finish_time": 6},
        "b": {"active": [], "inactive": [], "finish_time": 8},
    }
    assert read_trace(written(tmp_path, devices)).tolist() == [[0, 0, 4], [0, 6, 8], [1, 0, 0]]


GOOD = DEVICES["2"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "behaviour.json: must be a JSON file: Expecting property name"),
        ([], "behaviour.json: must be an object with an entry for each device"),
        ({}, "behaviour.json: must be an object with an entry for each device"),
        ({"a": 3}, "device 'a' = 3: must be an object with active, inactive and finish_time"),
        ({"a": {**GOOD, "finish_time": None}}, "device 'a': finish_time = None: must be a number of seconds"),
        ({"a": {**GOOD, "finish_time": 0}}, "finish_time = 0: must be a number of seconds > 0"),
        ({"a": {**GOOD, "finish_time": 3000}}, "finish_time = 3000: must be at least 3600, the device's"),
        ({"a": {**GOOD, "active": "0"}}, "device 'a': active = '0': must be a list of seconds >= 0"),
        ({"a": {**GOOD, "active": [-1]}}, "active = [-1]: must be a list of seconds >= 0"),
        ({"a": {**GOOD, "inactive": [True]}}, "inactive = [True]: must be a list of seconds >= 0"),
        ({"a": {**GOOD, "inactive": []}}, "inactive has 0 entries: must have as many as active, 1"),
        ({"a": {**GOOD, "active": [4000]}}, "active[0] = 4000 and inactive[0] = 3600: must be at least 0"),
        (
            {"a": {"active": [0, 5], "inactive": [6, 9], "finish_time": 9}},
            "active[1] = 5 and inactive[1] = 9: must be at least 6, in ascending order",
        ),
        (
            {"a": GOOD, "b": {"active": [], "inactive": [], "finish_time": 1}},
            "device 'b': finish_time = 1: must be at least 7.2, 1/1000 of the longest finish_time",
        ),
        (
            '{"a": {"active": [NaN], "inactive": [1], "finish_time": 1}}',
            "active = [nan]: must be a list of seconds",
        ),
    ],
)
def test_a_malformed_trace_is_refused(tmp_path, content, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        read_trace(written(tmp_path, content))


def test_a_pickle_is_not_read(tmp_path):
    """Reading a pickle could run code; its bytes are not even JSON."""
    import pickle

    file = tmp_path / "client_behave_trace.json"
    file.write_bytes(pickle.dumps(DEVICES))
    with pytest.raises(ValueError, match="must be a JSON file"):
        read_trace(file)
