"""A device joins with an invitation, once; addresses and names are checked."""

import shutil
from dataclasses import replace

import pytest

from deploy.device.device_folder import Device, Settings
from deploy.device.invitation import Invitation, check_name, check_server

from ...support.devices import BUNDLE, mode


@pytest.mark.parametrize("server", ["h:1", "10.0.0.1:9092", "[fe80::1%eth0]:65535", "a-b.example.org:80"])
def test_a_valid_address_is_accepted(server):
    assert check_server(server) == server


@pytest.mark.parametrize(
    "server", ["", "h", "h:0", "h:65536", "h:x", "::1:80", "https://h:1", "a b:1", "h:²"]
)
def test_an_invalid_address_is_refused(server):
    with pytest.raises(ValueError, match="must be host:port"):
        check_server(server)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "x" * 65, "ä", "a\n"])
def test_an_invalid_name_is_refused(name):
    with pytest.raises(ValueError, match="must be 1 to 64"):
        check_name(name)


TOKEN = "t0ken"


def an_invitation(folder, authority, name="pi-2"):
    path = folder / f"{name}.invitation"
    ca = authority.ca.read_text()
    Invitation(name, "fl.example.org:9092", ca, TOKEN, "2030-01-01", BUNDLE).write(path)
    return path


@pytest.fixture
def enrolled(monkeypatch):
    """Return the keys that a server has registered, in exchange for the token (see test_enrolment)."""
    keys = []

    def enrol(server, authority, token, key):
        assert (server, token) == ("fl.example.org:9092", TOKEN)
        assert "BEGIN CERTIFICATE" in authority.read_text()
        if keys and keys[0] is not key:
            raise ValueError("invitation: another device has used it")
        keys.append(key)

    monkeypatch.setattr("deploy.device.device_folder.enrol", enrol)
    return keys


def test_an_invitation_is_used_up_by_joining(tmp_path, authority, enrolled):
    path = an_invitation(tmp_path, authority)
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    assert mode(path) == 0o600
    assert "PRIVATE" not in path.read_text()
    device = Device(tmp_path / "state")
    assert device.accept(path) == Settings("pi-2", "fl.example.org:9092", bundle=BUNDLE)
    assert not path.exists()
    assert mode(device.folder / "key") == 0o600
    assert enrolled == [device.key_line()]
    assert (device.folder / "ca.crt").read_bytes() == authority.ca.read_bytes()
    assert sorted(each.name for each in device.folder.iterdir()) == [
        "ca.crt",
        "client.json",
        "key",
        "key.pub",
    ]
    with pytest.raises(ValueError, match="there is no such file; joining deletes an invitation"):
        device.accept(path)
    with pytest.raises(ValueError, match="another device has used it"):
        Device(tmp_path / "thief").accept(copy)
    assert copy.exists()  # a refused invitation is not used up
    assert not Device(tmp_path / "thief").has_joined

    # After its key was revoked, the same client is invited again and keeps its settings.
    before = device.key_line()
    device.prepare(replace(device.settings(), threads=2))
    enrolled.clear()
    (tmp_path / "again").mkdir()
    again = an_invitation(tmp_path / "again", authority)
    assert device.accept(again) == Settings("pi-2", "fl.example.org:9092", threads=2, bundle=BUNDLE)
    assert enrolled == [device.key_line()] != [before]
    with pytest.raises(ValueError, match="belongs to pi-2, which has already joined"):
        device.accept(an_invitation(tmp_path, authority, "pi-3"))


def test_a_device_that_missed_the_answer_shows_the_same_key_again(tmp_path, authority, monkeypatch):
    shown = []

    def enrol(server, authority, token, key):
        shown.append(key)
        if len(shown) < 3:
            raise ValueError("server: no answer")

    monkeypatch.setattr("deploy.device.device_folder.enrol", enrol)
    path, device = an_invitation(tmp_path, authority), Device(tmp_path / "state")
    for _ in range(2):
        with pytest.raises(ValueError, match="no answer"):
            device.accept(path)
        assert path.exists()
        assert not device.has_joined
    device.accept(path)
    assert set(shown) == {device.key_line()}


def test_a_device_that_is_killed_while_it_removes_its_keys_first_copy_has_joined(
    tmp_path, authority, enrolled, monkeypatch
):
    remove = shutil.rmtree

    def killed(folder, **settings):
        if folder.name.startswith("joining-") and (folder / "key.pub").exists():
            (folder / "key.pub").unlink()
            raise KeyboardInterrupt
        remove(folder, **settings)

    monkeypatch.setattr(shutil, "rmtree", killed)
    path, device = an_invitation(tmp_path, authority), Device(tmp_path / "state")
    with pytest.raises(KeyboardInterrupt):
        device.accept(path)
    assert device.has_joined
    assert enrolled == [device.key_line()]
    assert not path.exists()  # with it, the next call would make a key that the server refuses


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: "[" * 200_000,
        lambda text: text.replace('"cohort-invitation": 2', '"cohort-invitation": 1'),
        lambda text: text.replace('"server"', '"sever"'),
        lambda text: text.replace("pi-2", "../pi"),
        lambda text: text.replace("BEGIN CERTIFICATE", "BEGIN NOTHING"),
        lambda text: text.replace(BUNDLE, BUNDLE[1:]),
        lambda text: text.replace(f'"{TOKEN}"', "7"),
    ],
)
def test_a_file_that_is_not_an_invitation_is_refused_and_nothing_is_written(
    tmp_path, authority, change, enrolled
):
    path = an_invitation(tmp_path, authority)
    path.write_text(change(path.read_text()))
    device = Device(tmp_path / "state")
    with pytest.raises(ValueError, match=r"invitation|must hold the certificate"):
        device.accept(path)
    assert path.exists()
    assert enrolled == []
    assert not device.folder.exists()


def test_a_certificate_of_no_authority_is_refused(tmp_path, authority):
    for wrong in (authority.certificate, authority.key, tmp_path / "none"):
        with pytest.raises(ValueError, match=r"must hold the certificate of the authority|cannot be read"):
            Device(tmp_path / "state").introduce("pi-1", "h:1", wrong)
    assert not (tmp_path / "state").exists()
