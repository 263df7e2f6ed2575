"""A SuperNode runs a bundle only if it is the one that the server states and the device trusts."""

import hashlib
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.flower.commands import TRUST
from deploy.flower.patches.guards import bundles

CONTENT = b"the app"
HASH = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def receive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets a SuperNode receive a message, and returns what it got and replied."""
    loop = importlib.import_module(bundles._LOOP)

    def pull(*, receive: Any, get_fab: Any, state: Any, object_store: Any) -> Any:
        message, _ = receive()
        state.append(get_fab(message.stated, 7).content)
        return 7

    def run(trusted: object, stated: str = HASH, content: bytes = CONTENT) -> tuple[list[bytes], list[str]]:
        fetched: list[bytes] = []
        replies: list[str] = []
        settings = tmp_path / "client.json"
        settings.unlink(missing_ok=True)
        if trusted is not None:
            settings.write_text(trusted if isinstance(trusted, str) else json.dumps(trusted))
        monkeypatch.setenv(TRUST, str(settings))
        monkeypatch.setattr(loop, "_pull_and_store_message", pull)
        monkeypatch.setattr(
            loop, "_insert_message", lambda message, state, store: replies.append(message.reason)
        )
        message = SimpleNamespace(stated=stated, metadata=SimpleNamespace(run_id=7))

        def get_fab(fab_hash: str, run_id: int) -> Any:
            transferred.append(fab_hash)
            return SimpleNamespace(hash_str=fab_hash, content=content)

        flwr = importlib.import_module(bundles._MESSAGE)
        monkeypatch.setattr(
            flwr, "Message", lambda error, reply_to: SimpleNamespace(reason=error.reason, to=reply_to)
        )
        bundles.check_bundles()
        assert loop._pull_and_store_message(
            receive=lambda: (message, None), get_fab=get_fab, state=fetched, object_store=None
        ) == 7  # fmt: skip
        return fetched, replies

    transferred: list[str] = []
    run.transferred = transferred  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("trusted", ["", HASH])
def test_the_trusted_bundle_is_run(receive: Any, trusted: str) -> None:
    assert receive({"bundle": trusted}) == ([CONTENT], [])


@pytest.mark.parametrize(
    "trusted", [{"bundle": "0" * 64}, {"bundle": 7}, {"bundle": HASH.upper()}, {}, [], "{", None]
)
def test_another_bundle_is_refused_before_it_is_transferred(receive: Any, trusted: object) -> None:
    fetched, replies = receive(trusted)
    assert fetched == []
    assert receive.transferred == []
    assert replies[0].startswith(f"Refused bundle {HASH} of run 7: this device trusts ")


@pytest.mark.parametrize("trusted", ["", HASH])
def test_a_bundle_with_another_content_than_stated_is_refused(receive: Any, trusted: str) -> None:
    fetched, replies = receive({"bundle": trusted}, content=b"another app")
    assert fetched == []
    assert replies == [f"Refused bundle {HASH} of run 7: its content has another hash"]


def test_without_a_file_the_content_is_checked(receive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode of a cluster on one machine: no device's settings."""
    monkeypatch.setattr(monkeypatch, "setenv", lambda *_: None)
    monkeypatch.delenv(TRUST, raising=False)
    assert receive(None) == ([CONTENT], [])
    assert receive(None, content=b"another app")[0] == []
