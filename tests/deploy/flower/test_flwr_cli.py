"""`flwr` commands that are forked answer as those that are started, and go on without their fork server."""

import os
import signal
import sys

import pytest

from deploy.flower.flwr_cli import Flwr, flower_environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")


def test_commands_are_forked_and_are_programs_again_if_the_fork_server_dies(tmp_path):
    program = tmp_path / "flwr"
    program.write_text("""#!/bin/sh\necho 'A sentence first. {"success": true, "asked": "'"$*"'"}'\n""")
    program.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    flwr = Flwr({**os.environ, "PATH": path, "FLWR_HOME": str(tmp_path)})
    flwr.fork()
    try:
        forked = flwr.ask("nonsense")  # of Flower itself
        assert forked["success"] is False
        assert "No such command 'nonsense'" in forked["error-message"]
        assert flwr._server is not None
        assert flwr._server._child is not None
        os.kill(flwr._server._child, signal.SIGKILL)
        assert flwr.ask("list", "cluster")["asked"] == "list cluster --format json"
    finally:
        flwr.close()


def test_nothing_forces_colours_into_flwrs_json(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a notebook
    flwr = Flwr(flower_environment(tmp_path / "flwr", tmp_path))
    try:
        assert "\x1b" not in flwr.ask("nonsense")["error-message"]
    finally:
        flwr.close()
