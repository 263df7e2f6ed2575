"""A device says when it should not train, from what its system tells; and it trains on its own samples."""

import json
import sys

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from client import device_limits
from client.device_limits import Power, battery, charge, is_metered, temperature, why_unavailable
from client.local_data import LocalData
from strategies.clients.reports import STATUS
from strategies.flower.messages import read_report

from ..support.client_app import DEFAULTS, MODEL, TRAIN, report, say

ROUTE_HEADER = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
BUSCTL = (
    '#!/bin/sh\ntest "$*" = "get-property org.freedesktop.NetworkManager '
    '/org/freedesktop/NetworkManager org.freedesktop.NetworkManager Metered" || exit 1\necho "u {}"\n'
)


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A system that tells nothing: /sys/class and /proc/net/route below this folder, programs in bin/."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(device_limits, "SYS", tmp_path / "sys")
    monkeypatch.setattr(device_limits, "ROUTES", tmp_path / "route")
    return tmp_path


def supply(system, name, **files):
    folder = system / "sys" / "power_supply" / name
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(f"{text}\n")


def zone(system, name, kind, temp):
    folder = system / "sys" / "thermal" / name
    folder.mkdir(parents=True)
    (folder / "type").write_text(f"{kind}\n")
    (folder / "temp").write_text(f"{temp}\n")


def program(system, name, script):
    path = system / "bin" / name
    path.write_text(script)
    path.chmod(0o755)


def prints(said):
    return f"#!/bin/sh\n/bin/cat <<'END'\n{json.dumps(said)}\nEND\n"


def test_a_system_that_reports_nothing_may_train(system):
    assert (battery(), temperature(), is_metered()) == (None, None, False)
    limits = {"pause-file": "/nowhere", "min-battery": 100, "max-temperature": 0, "allow-metered": False}
    assert why_unavailable(limits) is None


@pytest.mark.parametrize(
    ("status", "percent", "reason"),
    [
        ("Discharging", "29", "battery at 29 % (min-battery 30 %) and not charging"),
        ("Discharging", "30", None),
        ("Charging", "5", None),
        ("Full", "5", None),
        ("Unknown", "5", "battery at 5 % (min-battery 30 %) and not charging"),
    ],
)
def test_a_low_battery_that_is_not_charging(system, status, percent, reason):
    supply(system, "BAT0", type="Battery", capacity=percent, status=status)
    assert why_unavailable({"min-battery": 30}) == reason
    assert why_unavailable({}) is None  # nobody asked


def test_mains_count_as_charging_and_the_fuller_battery_counts(system):
    supply(system, "mouse", type="Battery", scope="Device", capacity="1", status="Discharging")
    assert battery() is None
    supply(system, "BAT0", type="Battery", capacity="3", status="Discharging")
    supply(system, "BAT1", type="Battery", capacity="60", status="Discharging")
    assert battery() == Power(60, charging=False)
    supply(system, "AC", type="Mains", online="0")
    assert battery() == Power(60, charging=False)
    supply(system, "usb", type="USB", online="1")
    assert battery() == Power(60, charging=True)


def test_only_a_device_with_a_limit_reports_its_charge(system):
    assert charge({"min-battery": 30}) is None
    supply(system, "BAT0", type="Battery", capacity="73", status="Discharging")
    assert charge({"min-battery": 30}) == 73
    assert charge({}) is None
    (system / "sys" / "power_supply" / "BAT0" / "capacity").write_text("130")
    assert charge({"min-battery": 30}) is None


@pytest.mark.parametrize(
    ("plugged", "expected"),
    [("UNPLUGGED", Power(12, charging=False)), ("PLUGGED_AC", Power(12, charging=True))],
)
def test_a_phone_reports_its_battery_through_termux(system, plugged, expected):
    supply(system, "battery", type="Battery", status="Discharging")  # no capacity to be read
    assert battery() is None
    program(system, "termux-battery-status", prints({"percentage": 12, "plugged": plugged}))
    assert battery() == expected


@pytest.mark.parametrize(
    "script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nonsense\n", prints([1]), prints({})]
)
def test_invalid_output_of_a_program_is_ignored(system, script):
    for name in ("termux-battery-status", "busctl"):
        program(system, name, script)
    assert (battery(), is_metered()) == (None, False)


def test_a_program_that_does_not_answer_in_time_is_ignored(system, monkeypatch):
    monkeypatch.setattr(device_limits, "ANSWER_TIMEOUT", 0.2)
    program(system, "termux-battery-status", f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    assert battery() is None


def test_the_hottest_processor_sensor_counts(system):
    zone(system, "thermal_zone0", "cpu-thermal", "81500")
    zone(system, "thermal_zone1", "cpu-big", "70000")
    zone(system, "thermal_zone2", "battery", "990000")  # phones have such
    zone(system, "thermal_zone3", "cpu-off", "")
    assert temperature() == 81.5
    assert why_unavailable({"max-temperature": 80}) == "processor at 82 °C (max-temperature 80 °C)"
    assert why_unavailable({"max-temperature": 82}) is None


@pytest.mark.parametrize(("value", "expected"), [(0, False), (1, True), (2, False), (3, True), (4, False)])
def test_network_manager_reports_metered_networks(system, value, expected):
    program(system, "busctl", BUSCTL.format(value))
    assert is_metered() is expected


def routes(system, *ways):
    """Write a routing table: interface, destination, metric."""
    rows = [f"{name}\t{to}\t0101A8C0\t0003\t0\t0\t{metric}\t00000000\t0\t0\t0\n" for name, to, metric in ways]
    (system / "route").write_text(ROUTE_HEADER + "".join(rows))


def test_a_modem_and_a_phone_without_wifi_are_metered(system):
    routes(system, ("wlan0", "00000000", 600), ("wwan0", "0002A8C0", 0))
    assert not is_metered()
    routes(system, ("wwan0", "00000000", 700), ("eth0", "00000000", 100))  # there if the other fails
    assert not is_metered()
    routes(system, ("wwan0", "00000000", 50), ("eth0", "00000000", 100))
    assert is_metered()
    (system / "route").unlink()
    program(system, "termux-wifi-connectioninfo", prints({"supplicant_state": "COMPLETED"}))
    assert not is_metered()
    program(system, "termux-wifi-connectioninfo", prints({"supplicant_state": "UNINITIALIZED"}))
    assert is_metered()
    assert why_unavailable({"allow-metered": False}) == "on a metered network (allow-metered is false)"
    assert why_unavailable({"allow-metered": True}) is None


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min-battery": 101}, "min-battery = 101 in the node's config: must be a number between 0 and 100"),
        ({"max-temperature": "hot"}, "max-temperature = 'hot' in the node's config: must be a number"),
        ({"min-battery": True}, "min-battery = True"),
        ({"allow-metered": 1}, "allow-metered = 1 in the node's config: must be true or false"),
    ],
)
def test_a_wrong_limit_is_named(system, limits, message):
    with pytest.raises(ValueError, match=message):
        why_unavailable(limits)


def test_a_paused_client_says_so_and_does_not_train(system):
    pause = system / "paused"
    node = {"pause-file": str(pause)}
    assert report(STATUS, node=node).available
    assert say("train", TRAIN, node, arrays=MODEL).array_records
    pause.touch()
    assert not report(STATUS, node=node).available
    declined = say("train", TRAIN, node, arrays=MODEL)
    assert not declined.array_records
    assert not read_report(declined).available
    assert read_report(declined).num_examples == report(STATUS, node=node).num_examples


def save(path, **arrays):
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return str(path)


def context(**node_config):
    return Context(1, 1, node_config, RecordDict(), {**DEFAULTS})


def test_a_device_trains_on_the_file_that_its_config_names(tmp_path):
    rng = np.random.default_rng(0)
    inputs, labels = rng.random((7, 64)), rng.integers(0, 10, 7)
    mine = LocalData.from_context(context(data=save(tmp_path / "ward-3.npz", inputs=inputs, labels=labels)))
    assert mine.client_id == "ward-3"
    assert len(mine.data) == 7
    np.testing.assert_array_equal(mine.data.inputs, inputs.astype(np.float32))
    named = LocalData.from_context(context(**{"data": str(tmp_path / "ward-3.npz"), "client-id": "pi-1"}))
    assert named.client_id == "pi-1"
    assert (
        LocalData.from_context(context(**{"partition-id": 0, "num-partitions": 2})).client_id == "client-00"
    )


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": np.ones((2, 64))}, r"must be an \.npz with inputs and labels"),
        ({"inputs": np.ones(64), "labels": np.ones(64, int)}, r"inputs are float64 \(64,\)"),
        ({"inputs": np.ones((0, 64)), "labels": np.ones(0, int)}, r"inputs are float64 \(0, 64\)"),
        ({"inputs": np.ones((2, 64)), "labels": np.ones(3, int)}, r"labels are int64 \(3,\): must be whole"),
        ({"inputs": np.ones((2, 64)), "labels": np.ones(2)}, "labels are float64"),
        ({"inputs": np.ones((2, 64)), "labels": np.array([0, -1])}, "must be whole numbers >= 0"),
        ({"inputs": np.full((2, 64), np.nan), "labels": np.ones(2, int)}, "inputs must be finite"),
        ({"inputs": np.array([[{}]], object), "labels": np.ones(1, int)}, r"must be an \.npz"),
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        LocalData.from_context(context(data=save(tmp_path / "x.npz", **arrays)))


def test_a_file_that_is_missing_or_no_archive_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be an \.npz"):
        LocalData.from_context(context(data=str(tmp_path / "none.npz")))
    (tmp_path / "text.npz").write_text("1,2,3")
    with pytest.raises(ValueError, match=r"must be an \.npz"):
        LocalData.from_context(context(data=str(tmp_path / "text.npz")))
