"""A key is registered once, and tried again if the SuperLink could not be reached."""

import click
import pytest

from deploy.flower.key_registration import KNOWN, register

NAMES = ["client-00", "client-01", "client-02"]


def test_a_key_is_registered_once_so_that_a_revoked_one_stays_out(tmp_path):
    calls = []
    keys = [tmp_path / f"{name}.pub" for name in NAMES]

    def flwr(arguments):
        calls.append(arguments)
        if str(keys[1]) in arguments:
            raise click.ClickException(f"{KNOWN}.")

    for key in keys:
        key.write_text(f"key of {key.stem}")
    assert register("cluster", keys, tmp_path / "done", flwr) == NAMES
    assert calls[0] == ["supernode", "register", str(keys[0]), "cluster", "--name", "client-00"]
    calls.clear()
    assert register("cluster", keys, tmp_path / "done", flwr) == []
    assert calls == []
    keys[2].write_text("another key")
    assert register("cluster", keys, tmp_path / "done", flwr) == ["client-02"]


def test_a_key_that_could_not_be_registered_is_tried_again(tmp_path):
    def flwr(arguments):
        raise click.ClickException("Connection to the SuperLink is unavailable.")

    key = tmp_path / "client-00.pub"
    key.write_text("key")
    with pytest.raises(click.ClickException, match="unavailable"):
        register("cluster", [key], tmp_path / "done", flwr)
    assert register("cluster", [key], tmp_path / "done", lambda arguments: None) == ["client-00"]
