"""Lets a SuperNode run an app only if the app's bundle is the one that the device trusts.

Stock Flower does not check the bundle, so whoever controls the server could run any code on every device.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from functools import wraps
from logging import getLogger
from pathlib import Path
from typing import Any

from deploy.flower.commands import ACCEPTED_BUNDLE, REFUSED_BUNDLE, TRUST
from deploy.flower.patches.shared import replace
from deploy.json_text import parse_json

_LOOP = "flwr.supernode.start_client_internal"
_MESSAGE = "flwr.app"
USED = (
    f"{_LOOP}:_pull_and_store_message",
    f"{_LOOP}:_insert_message",
    f"{_LOOP}:ErrorCode.INVALID_FAB",
    f"{_MESSAGE}:Message",
    f"{_MESSAGE}:Error",
)


class _BundleRefused(Exception):  # noqa: N818
    """A bundle is refused. The message says why."""


def check_bundles() -> None:
    """Let the SuperNode refuse a run's messages unless it trusts the run's bundle.

    The bundle must have the hash that the server states. The environment variable `TRUST` may name a JSON
    file whose entry "bundle" is the only trusted hash, or "" if any hash is trusted. The file is read for
    each new run. Without the variable, any hash is trusted; without a valid entry, no hash is.
    """
    settings = os.environ.pop(TRUST, None)
    loop = importlib.import_module(_LOOP)
    pull = loop._pull_and_store_message

    @wraps(pull)
    def pull_checked(*, receive: Any, get_fab: Any, state: Any, object_store: Any, **others: Any) -> Any:
        received: list[Any] = []

        def receive_and_keep() -> Any:
            answer = receive()
            received.append(answer)
            return answer

        def get_checked(fab_hash: str, run_id: int) -> Any:
            trusted = "" if settings is None else trusted_bundle(Path(settings))
            if trusted not in ("", fab_hash):  # the bundle is refused before it is transferred
                raise _BundleRefused(
                    f"{REFUSED_BUNDLE} {fab_hash} of run {run_id}: this device trusts {trusted}"
                )
            fab = get_fab(fab_hash, run_id)
            if hashlib.sha256(fab.content).hexdigest() != fab_hash:
                raise _BundleRefused(
                    f"{REFUSED_BUNDLE} {fab_hash} of run {run_id}: its content has another hash"
                )
            getLogger("flwr").info("%s %s of run %s", ACCEPTED_BUNDLE, fab_hash, run_id)
            return fab

        try:
            return pull(
                receive=receive_and_keep,
                get_fab=get_checked,
                state=state,
                object_store=object_store,
                **others,
            )
        except _BundleRefused as refused:
            getLogger("flwr").error("%s", refused)
            message, _ = received[0]
            flwr = importlib.import_module(_MESSAGE)
            error = flwr.Error(loop.ErrorCode.INVALID_FAB, str(refused))
            loop._insert_message(flwr.Message(error, reply_to=message), state, object_store)
            return message.metadata.run_id

    replace(_LOOP, _pull_and_store_message=pull_checked)


def trusted_bundle(settings: Path) -> str:
    """Return the only trusted hash in a file, or "" if any hash is trusted.

    If the file has no valid entry, return a text that is no bundle's hash.
    """
    try:
        trusted = parse_json(settings.read_text())["bundle"]
        return trusted if isinstance(trusted, str) else "none"
    except (OSError, ValueError, KeyError, TypeError):
        return "none"
