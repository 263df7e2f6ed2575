"""Registers clients' keys with a SuperLink; run as a module, it registers many in one process.

Importing Flower is most of the work of `flwr supernode register`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploy.flower.commands import python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KNOWN = "Public key already in use"  # part of Flower's message for a key that is registered


def registration_command(
    connection: str, keys: Sequence[Path], records: Path, *, installed: bool = True
) -> list[str]:
    """Return the command that registers these public keys; see `register` and `commands.patched`."""
    arguments = (connection, str(records), *map(str, keys))
    return python("-m", "deploy.flower.registration", *arguments, installed=installed)


def register(
    connection: str, keys: Sequence[Path], records: Path, flwr: Callable[[list[str]], object]
) -> list[str]:
    """Register the public keys that have not been registered yet.

    Each key is registered once and never again, so that a revoked key stays out when the SuperLink restarts.

    Parameters
    ----------
    connection : str
        The SuperLink's connection in Flower's config.toml.
    keys : Sequence[Path]
        The public keys, NAME.pub each; NAME becomes the SuperNode's name.
    records : Path
        The folder for a copy of each registered key, under its client's name; made if it is missing.
    flwr : Callable[[list[str]], object]
        Runs `flwr` with these arguments.

    Returns
    -------
    list[str]
        The names of the newly registered clients.

    Raises
    ------
    click.ClickException
        If the SuperLink refuses a key, or does not answer.
    """
    records.mkdir(exist_ok=True)
    new = []
    for key in keys:
        record = records / key.stem
        if record.exists() and record.read_bytes() == key.read_bytes():
            continue
        try:
            flwr(["supernode", "register", str(key), connection, "--name", key.stem])
        except click.ClickException as error:
            if KNOWN not in error.format_message():  # else: killed last time before the record was written
                raise
        record.write_bytes(key.read_bytes())
        new.append(key.stem)
    return new


if __name__ == "__main__":
    from flwr.cli.app import app

    superlink, folder, *public_keys = sys.argv[1:]
    registered = register(
        superlink,
        list(map(Path, public_keys)),
        Path(folder),
        lambda arguments: app(arguments, standalone_mode=False),
    )
    print(f"cohort: {len(registered)} keys registered, {len(public_keys)} in all", flush=True)
