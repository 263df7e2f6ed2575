"""Flower's helper processes, forked from one that has imported Flower already.

A SuperNode starts a `flower-superexec`, and that a `flwr-clientapp` for every message. Each spends
1.5 s of CPU on importing Flower before it does anything: with ten clients on two cores that is most of
what the machine does. So this file puts programs of the same names in front of the PATH. They hand
their arguments, environment and output over to a process that forks a child, which runs the very same
command in a few milliseconds. Where that process is missing, they run the ordinary command.

Run as a script, and by `-S` without site-packages: at the top only the standard library may be imported.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

COMMANDS = ("flower-superexec", "flwr-clientapp", "flwr-serverapp")
PRELOAD = ("numpy", "pydantic")  # besides Flower; nothing of the app, whose code comes in its bundle
SOCKET = "warm.socket"
_SHIM = '#!/bin/sh\nexec "{python}" -IS "{this}" "$(dirname "$0")" {name} "$@"\n'


def write_shims(folder: Path) -> None:
    """Make `folder` and fill it with the programs that are to come first on the PATH."""
    folder.mkdir()
    for name in COMMANDS:
        shim = folder / name
        shim.write_text(_SHIM.format(python=sys.executable, this=Path(__file__).resolve(), name=name))
        shim.chmod(0o755)


def serve_command(folder: Path) -> list[str]:
    """Return the command that serves the programs in `folder`, until it is ended."""
    # -P: as for an installed command, this file's folder is no place to import from.
    return [sys.executable, "-P", str(Path(__file__).resolve()), str(folder)]


def _serve(folder: str) -> None:
    """Fork a child for each request. Returns only in a child, once it has become the command."""
    # The name of a socket may have about 100 characters: it is bound by its name in the folder, and
    # renamed once it listens. What arrives during the imports waits.
    os.chdir(folder)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{SOCKET}.new")
    listener.listen(128)
    Path(f"{SOCKET}.new").rename(SOCKET)

    from importlib.metadata import entry_points

    scripts = entry_points(group="console_scripts")
    commands = {name: scripts[name].load() for name in COMMANDS}
    for module in PRELOAD:
        importlib.import_module(module)
    gc.freeze()  # the children's collector must not touch, and so copy, what they share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                request, descriptors = _receive(connection)
            except (OSError, ValueError):  # who asked was ended in mid-sentence
                continue
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["command"]
    # The global generator was seeded by the import: without this all clients would draw the same.
    importlib.import_module("numpy.random").seed()
    sys.exit(commands[sys.argv[0]]())


def _receive(connection: socket.socket) -> tuple[dict, list[int]]:  # type: ignore[type-arg]
    """Receive what `_hand_over` sent: the request, and the descriptors of its output."""
    text, descriptors, _, _ = socket.recv_fds(connection, 65536, 2)
    try:
        while part := connection.recv(65536):
            text += part
        return json.loads(text), descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _hand_over(folder: str, command: list[str]) -> None:
    """Let the serving process run the command, or run it here if there is none."""
    before = str(Path.cwd())
    request = {"command": command, "environment": dict(os.environ), "folder": before}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            os.chdir(folder)
            connection.connect(SOCKET)
            text = json.dumps(request).encode()
            sent = socket.send_fds(connection, [text], [1, 2])
            connection.sendall(text[sent:])
    except OSError:
        os.chdir(before)
        path = [each for each in os.environ["PATH"].split(os.pathsep) if each != folder]
        os.environ["PATH"] = os.pathsep.join(path)
        os.execvp(command[0], command)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _serve(sys.argv[1])
    else:
        _hand_over(sys.argv[1], sys.argv[2:])
