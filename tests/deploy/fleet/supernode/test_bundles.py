"""A SuperNode runs a bundle only if it is the one that the server states and the device trusts."""

import hashlib
import json
from types import SimpleNamespace

import pytest

from deploy.fleet.supernode.bundles import BundleRefusedError, fetch

CONTENT = b"the app"
HASH = hashlib.sha256(CONTENT).hexdigest()


class Server:
    def __init__(self, content=CONTENT):
        self.content = content
        self.transferred = []

    def get_fab(self, fab_hash, run_id):
        self.transferred.append((fab_hash, run_id))
        return SimpleNamespace(hash_str=fab_hash, content=self.content)


def settings(folder, trusted):
    path = folder / "client.json"
    if trusted is not None:
        path.write_text(trusted if isinstance(trusted, str) else json.dumps(trusted))
    return path


@pytest.mark.parametrize("trusted", ["", HASH])
def test_the_trusted_bundle_is_run(tmp_path, trusted):
    server = Server()
    assert fetch(server.get_fab, HASH, 7, settings(tmp_path, {"bundle": trusted})).content == CONTENT
    assert server.transferred == [(HASH, 7)]


@pytest.mark.parametrize(
    "trusted", [{"bundle": "0" * 64}, {"bundle": 7}, {"bundle": HASH.upper()}, {}, [], "{", None]
)
def test_another_bundle_is_refused_before_it_is_transferred(tmp_path, trusted):
    server = Server()
    with pytest.raises(BundleRefusedError, match=f"^Refused bundle {HASH} of run 7: this device trusts "):
        fetch(server.get_fab, HASH, 7, settings(tmp_path, trusted))
    assert server.transferred == []


@pytest.mark.parametrize("trusted", ["", HASH, None])
def test_a_bundle_with_another_content_than_stated_is_refused(tmp_path, trusted):
    """Without settings too, as in a SuperNode of a cluster on one machine."""
    path = None if trusted is None else settings(tmp_path, {"bundle": trusted})
    assert fetch(Server().get_fab, HASH, 7, path).content == CONTENT
    with pytest.raises(BundleRefusedError, match=f"Refused bundle {HASH} of run 7: its content has another"):
        fetch(Server(b"another app").get_fab, HASH, 7, path)
