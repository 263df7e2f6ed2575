"""A forked command is the ordinary command: same arguments, environment, folder and output."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_without_the_server_the_ordinary_command_runs(shims: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    call(shims, "flower-superexec", "--version", output=output)
    assert output.read_text() == "Flower version: 1.39.0\n"
