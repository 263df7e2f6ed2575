"""Fetches the bundle of an app for a SuperNode, and refuses any but the one that the device trusts.

Stock Flower does not check the bundle, so whoever controls the server could run any code on every device.
"""

import hashlib
from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from typing import Any

from deploy.flower.commands import ACCEPTED_BUNDLE, REFUSED_BUNDLE
from deploy.json_text import parse_json


class BundleRefusedError(Exception):
    """A bundle is refused. The message says why."""


def fetch(get_fab: Callable[[str, int], Any], fab_hash: str, run_id: int, settings: Path | None) -> Any:
    """Return the bundle of a run.

    `get_fab`: fetches a bundle by its hash and run. It is not called if the device does not trust the hash.
    `fab_hash`: the hash that the server states. `settings`: a JSON file whose entry "bundle" is the only
    trusted hash, or "" if any hash is trusted. Without a valid entry, no hash is. None: any hash is trusted.

    Raises BundleRefusedError if the device does not trust the hash, or the content has another one.
    """
    trusted = "" if settings is None else trusted_bundle(settings)
    if trusted not in ("", fab_hash):
        raise BundleRefusedError(f"{REFUSED_BUNDLE} {fab_hash} of run {run_id}: this device trusts {trusted}")
    fab = get_fab(fab_hash, run_id)
    if hashlib.sha256(fab.content).hexdigest() != fab_hash:
        raise BundleRefusedError(f"{REFUSED_BUNDLE} {fab_hash} of run {run_id}: its content has another hash")
    getLogger("flwr").info("%s %s of run %s", ACCEPTED_BUNDLE, fab_hash, run_id)
    return fab


def trusted_bundle(settings: Path) -> str:
    """Return the only trusted hash in a file, or "" if any hash is trusted.

    If the file has no valid entry, return a text that is no bundle's hash.
    """
    try:
        trusted = parse_json(settings.read_text())["bundle"]
        return trusted if isinstance(trusted, str) else "none"
    except (OSError, ValueError, KeyError, TypeError):
        return "none"
