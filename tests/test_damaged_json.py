"""Files of JSON with more brackets than Python can parse are refused like any other damaged file."""

import pytest

from deploy.device.device_folder import Device
from deploy.device.invitation import Invitation
from deploy.fleet.supernode.bundles import trusted_bundle
from deploy.flower.registered_clients import Registry
from deploy.hosting.server import Server, ServerError
from deploy.json_text import parse_json
from deploy.runs.trials import read_plan
from server.settings import _read_object
from strategies.json_text import parse_json as parse_in_strategies
from strategies.reporters.base import read_note
from tasks.leaf import _users

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("client.json", lambda file: Device(file.parent).settings()),
        ("x.invitation", Invitation.read),
        ("server.json", lambda file: Server.load(file.parent)),
        ("revoked.json", lambda file: Server(file.parent, ("h",))._revoked()),
        ("run.json", lambda file: read_plan(file.parent)),
        ("overrides.json", lambda file: _read_object("overrides", str(file))),
        ("data.json", lambda file: list(_users(file))),
    ],
)
def test_the_error_names_the_file_in_one_line(tmp_path, name, read):
    (tmp_path / name).write_text(DEEP)
    with pytest.raises((ValueError, ServerError)) as error:
        read(tmp_path / name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_file_that_may_be_missing_counts_as_missing(tmp_path):
    file = tmp_path / "file.json"
    file.write_text(DEEP)
    assert read_note(file) == {}
    assert trusted_bundle(file) == "none"  # no bundle has this hash, so none is run
    registry = Registry(tmp_path)
    registry.prepare()
    token = registry.invite("pi-1", 60)
    next((tmp_path / "invitations").iterdir()).write_text(DEEP)
    assert not registry.knows(token)


@pytest.mark.parametrize("parse", [parse_json, parse_in_strategies])
def test_both_parsers_do_the_same(parse):
    assert parse('{"a": [1, null]}') == {"a": [1, None]}
    for text in (DEEP, "", "nonsense"):
        with pytest.raises(ValueError, match=r"too many levels|Expecting value"):
            parse(text)
