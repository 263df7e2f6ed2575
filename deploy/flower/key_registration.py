"""Registers clients' keys with a SuperLink.

If this module is run as a program, it imports Flower once and registers any number of keys. `flwr supernode
register` registers one key per process, and spends most of its time on importing Flower.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import click

from deploy.flower.commands import python

KNOWN = "Public key already in use"  # part of Flower's error message about a key that is already registered


def registration_command(
    connection: str, keys: Sequence[Path], records: Path, *, installed: bool = True
) -> list[str]:
    """Return the command that registers public keys in a process of its own.

    `register` explains `connection`, `keys` and `records`; `commands.patched` explains `installed`.
    """
    arguments = (connection, str(records), *map(str, keys))
    return python("-m", "deploy.flower.key_registration", *arguments, installed=installed)


def register(
    connection: str, keys: Sequence[Path], records: Path, flwr: Callable[[list[str]], object]
) -> list[str]:
    """Register those of the public keys that `records` does not hold yet.

    A key in `records` is never registered again, so a revoked key stays revoked after the SuperLink restarts.

    `keys`: the files of the public keys. The file NAME.pub registers a SuperNode under the name NAME.
    `records`: the folder that holds a copy of each registered key, in a file NAME. It is made if it is
    missing. `flwr`: runs `flwr` with the given arguments. Raises click.ClickException if the command fails.

    Returns the names of the clients whose keys were newly registered.

    Raises click.ClickException if the SuperLink refuses a key, or does not answer.
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
            if KNOWN not in error.format_message():  # KNOWN: an earlier call ended before it wrote the record
                raise
        record.write_bytes(key.read_bytes())
        new.append(key.stem)
    return new


if __name__ == "__main__":
    (command,) = entry_points(group="console_scripts", name="flwr")
    app = command.load()

    superlink, folder, *public_keys = sys.argv[1:]
    registered = register(
        superlink,
        list(map(Path, public_keys)),
        Path(folder),
        lambda arguments: app(arguments, standalone_mode=False),
    )
    print(f"cohort: {len(registered)} keys registered, {len(public_keys)} in all", flush=True)
