"""A server and devices as their users run them, each in a process of its own."""

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.processes.ports import free_ports

from .processes import wait_for

COHORT = Path(sys.executable).parent / "cohort"
BUNDLE = 64 * "b"  # the hash of an app


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def public_key_of(private):
    """Return the public key, as one line, of the client whose private key is in this file."""
    key = serialization.load_ssh_private_key(private.read_bytes(), None)
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*form).decode()


def run_cli(*arguments):
    """Run `cohort client` in this process; return its exit code and output."""
    result = CliRunner().invoke(cli, ["client", *arguments])
    return result.exit_code, result.output


def cohort(*arguments, folder, program=COHORT):
    done = subprocess.run(
        [program, *arguments, "--dir", str(folder)],
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Running:
    """A running `cohort client join` or `cohort server up`, and its output.

    `environment`: variables that it has besides those of this process.
    """

    def __init__(self, log, *arguments, program=(str(COHORT),), environment=()):
        self.log = log
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [*program, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **dict(environment)},
            )

    @property
    def said(self):
        return self.log.read_text()

    def wait_for(self, text, timeout=120, times=1):
        wait_for(lambda: self.said.count(text) >= times, timeout, lambda: f"{text!r} not in:\n{self.said}")

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        finally:
            self.process.kill()


@contextlib.contextmanager
def server_up(folder, program=COHORT, host="localhost"):
    """Run a server for devices on this machine: a new one, or the one of this folder again."""
    options = ()
    if not folder.exists():
        port, control = free_ports(2)
        options = ("--host", host, "--listen", "127.0.0.1")
        options += ("--port", str(port), "--control-port", str(control))
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    up = Running(log, "server", "up", "--dir", str(folder), *options, program=[str(program)])
    try:
        up.wait_for(f"up at {host}:")
        yield folder
    finally:
        up.end()
