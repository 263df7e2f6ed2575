"""A forked command is the ordinary command: same arguments, environment, folder and output."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy import warm
from deploy.processes import Process, wait_until
from deploy.warm import COMMANDS, SOCKET, serve_command, write_shims

VENV = Path(sys.executable).parent


@pytest.fixture
def shims(tmp_path: Path) -> Path:
    write_shims(tmp_path / "bin")
    return tmp_path / "bin"


@pytest.fixture
def server(shims: Path, tmp_path: Path) -> Iterator[Process]:
    process = Process(serve_command(shims), tmp_path / "warm.log", dict(os.environ))
    assert wait_until((shims / SOCKET).exists, 10), process.tail()
    yield process
    process.signal_group(signal.SIGKILL)


def call(shims: Path, *command: str, output: Path) -> None:
    path = os.pathsep.join(map(str, (shims, VENV, os.defpath)))
    with output.open("w") as file:
        environment = {**os.environ, "PATH": path}
        subprocess.run(
            [shims / command[0], *command[1:]], env=environment, stdout=file, stderr=file, check=False
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_forked_command_gets_its_arguments_and_writes_to_its_own_output(
    server: Process, shims: Path, tmp_path: Path, name: str
) -> None:
    output = tmp_path / "output"
    call(shims, name, "--no-such-option", output=output)
    assert wait_until(lambda: "error:" in output.read_text(), 30), server.tail()
    assert f"usage: {name}" in output.read_text()
    assert server.returncode is None
    assert "usage" not in server.tail()


def test_a_request_that_breaks_off_does_not_end_the_server(
    server: Process, shims: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shims)  # the name of a socket may have about 100 characters
    for torn in (b"", b'{"command": ["flower', b"\xff"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(SOCKET)
            if torn:
                socket.send_fds(connection, [torn], [0, 0])
    output = tmp_path / "output"
    call(shims, "flower-superexec", "--version", output=output)
    assert wait_until(lambda: output.read_text() == "Flower version: 1.39.0\n", 30), server.tail()
    assert server.returncode is None
    descriptors = Path(f"/proc/{server.pid}/fd")
    if descriptors.exists():  # Linux
        assert len(list(descriptors.iterdir())) <= 4  # the standard ones and the socket


def test_forked_children_do_not_draw_the_same_numbers(tmp_path: Path) -> None:
    """A command of the test's own, installed where only this server finds it, prints NumPy's next number."""
    (tmp_path / "draw.py").write_text("import numpy.random\ndef main(): print(numpy.random.random())\n")
    package = tmp_path / "draw-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: draw\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[console_scripts]\ndraw = draw:main\n")
    folder = tmp_path / "bin"
    folder.mkdir()
    serve = f"from deploy import warm; warm.COMMANDS = ('draw',); warm._serve({str(folder)!r})"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(warm.__file__).parent.parent}"}
    process = Process([sys.executable, "-c", serve], tmp_path / "warm.log", environment)
    try:
        assert wait_until((folder / SOCKET).exists, 10), process.tail()
        outputs = [tmp_path / "one", tmp_path / "two"]
        for output in outputs:
            with output.open("w") as file:
                shim = [sys.executable, "-IS", warm.__file__, str(folder), "draw"]
                subprocess.run(shim, stdout=file, stderr=file, check=True)
        assert wait_until(lambda: all(output.read_text() for output in outputs), 30), process.tail()
        one, two = (float(output.read_text()) for output in outputs)
        assert one != two
    finally:
        process.signal_group(signal.SIGKILL)


def test_without_the_server_the_ordinary_command_runs(shims: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    call(shims, "flower-superexec", "--version", output=output)
    assert output.read_text() == "Flower version: 1.39.0\n"
