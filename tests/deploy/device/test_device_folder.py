"""A device keeps a key, its settings and the node's configuration in a private folder."""

import os
from dataclasses import replace

import pytest

from deploy.device import device_folder, reconnect
from deploy.device.device_folder import Settings

from ...support.devices import mode, public_key_of, run_cli


def test_a_device_makes_a_private_key_once(device, authority):
    key = (device.folder / "key").read_bytes()
    assert (mode(device.folder), mode(device.folder / "key")) == (0o700, 0o600)
    assert device.key_line().startswith("ecdsa-sha2-nistp256 ")
    assert device.settings() == Settings("pi-1", "fl.example.org:9092")
    device.prepare(replace(device.settings(), nice=3, partition="1/4"))
    device.introduce("pi-1", "elsewhere:1", authority.ca)
    assert (device.folder / "key").read_bytes() == key
    assert device.settings() == Settings("pi-1", "elsewhere:1", nice=3, partition="1/4")


def test_a_new_key_replaces_the_old_one_and_must_be_registered(device):
    (device.folder / reconnect.ADMITTED).touch()
    before = device.key_line()
    device.renew_key()
    assert device.key_line() == public_key_of(device.folder / "key") != before
    assert mode(device.folder / "key") == 0o600
    assert not (device.folder / reconnect.ADMITTED).exists()
    assert not (device.folder / "new").exists()


def test_the_settings_that_the_node_receives(device, tmp_path):
    import tomllib

    data = tmp_path / 'my "data".npz'
    data.touch()
    device.prepare(replace(device.settings(), data=str(data), min_battery=50, threads=2))
    assert tomllib.loads((device.folder / "node.toml").read_text()) == {
        "client-id": "pi-1",
        "secret-file": str(device.folder / "secret"),
        "training-file": str(device.folder / "trained.json"),
        "pause-file": str(device.folder / "paused"),
        "min-battery": 50,
        "max-temperature": 80.0,
        "allow-metered": False,
        "data": str(data),
    }
    environment = device.environment(device.settings())
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "2"
    assert environment["FLWR_HOME"] == str(device.folder / "flwr")
    device.prepare(replace(device.settings(), data="", partition="3/10"))
    config = tomllib.loads((device.folder / "node.toml").read_text())
    assert (config["partition-id"], config["num-partitions"]) == (3, 10)
    mine = {
        "group": "north", "private_group": "2", "group_epsilon": 1.0, "noise_epsilon": 10.0,
        "loss_bound": 4.0, "norm_bound": 2.0, "cost": 0.0, "energy": 2.5,
    }  # fmt: skip
    device.prepare(replace(device.settings(), **mine))
    config = tomllib.loads((device.folder / "node.toml").read_text())
    assert {name: config[name.replace("_", "-")] for name in mine} == mine


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_new_key_belongs_to_the_owner_of_the_folder(device):
    """The folder of a system service belongs to the service's user, and root makes the new key."""
    os.chown(device.folder, 54321, 54321)
    device.renew_key()
    assert (device.folder / "key").stat().st_uid == 54321


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_root_opens_the_folder_of_another_user_only_where_systemd_makes_it(device, monkeypatch):
    device.check_owner()
    os.chown(device.folder, 54321, 54321)
    for command in ("status", "pause", "trust any", "join"):
        code, output = run_cli(*command.split(), "--state-dir", str(device.folder))
        assert code == 2
        assert f"state-dir = {device.folder}: belongs to 54321, who could replace the keys" in output
    assert not (device.folder / "paused").exists()
    monkeypatch.setattr(device_folder, "UNIT_FOLDERS", (device.folder.parent,))
    device.check_owner()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nice": 20}, "nice = 20: must be between 0 and 19"),
        ({"threads": 0}, "threads = 0: must be between 1 and 1024"),
        ({"min_battery": 101}, "min-battery = 101: must be between 0 and 100"),
        ({"memory_limit": 99}, r"memory-limit = 99: must be at least 100 \(MB\)"),
        ({"partition": "10/10"}, r"partition = '10/10': must be i/N with i in 0..N-1"),
        ({"partition": "ten"}, "partition = 'ten'"),
        ({"data": __file__, "partition": "0/2"}, "partition = 0/2: cannot be combined with data"),
        ({"group": " north"}, "group = ' north': must be up to 128 printable characters"),
        ({"private_group": "x\n"}, "private-group = 'x.*': must be up to 128"),
        ({"noise_epsilon": 0.0}, "noise-epsilon = 0.0: must be a finite number above 0"),
        ({"norm_bound": float("inf")}, "norm-bound = inf: must be a finite number above 0"),
        ({"cost": -1}, "cost = -1: must be a finite number of at least 0"),
        ({"energy": float("nan")}, "energy = nan: must be a finite number"),
        ({"name": "node-7"}, "name = 'node-7': must be"),
        ({"server": "host"}, "server = 'host': must be host:port"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_allowed_values(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(Settings("pi-1", "host:1"), **wrong)
