"""`cohort page`, and `--page` of `cohort up`, `cohort simulate` and `cohort server up`."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.hosting.server import Server
from deploy.page.secret_link import kept_token, shown_address

from .test_http_interface import write
from .test_run_sources import lines_of


def test_a_run_is_shown_until_ctrl_c(tmp_path):
    write(tmp_path / "run" / "md", lines_of([{0: (1, True)}]))
    program = [sys.executable, "-c", "from deploy.command import main; main()", "page", str(tmp_path / "run")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        line = page.stdout.readline()
        found = re.fullmatch(
            r"open (http://127.0.0.1:\d+/)SECRET/ with the SECRET in (\S+)   \(Ctrl-C ends the page\)\n", line
        )
        assert found
        secret = Path(found[2])
        assert secret.stat().st_mode & 0o077 == 0
        assert httpx.get(f"{found[1]}{secret.read_text()}/data/state", timeout=20).json()["run"] == "run"
        page.send_signal(2)
        assert page.wait(20) == 0
    assert not secret.exists()


def test_only_a_terminal_shows_the_secret(tmp_path, monkeypatch):
    for kept in (None, tmp_path / "page.secret"):
        with shown_address(17, "abc", kept) as shown:
            assert "abc" not in shown
            assert kept is None or shown == f"http://127.0.0.1:17/SECRET/ with the SECRET in {kept}"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with shown_address(17, "abc", tmp_path / "page.secret") as shown:
        assert shown == "http://127.0.0.1:17/abc/"


def test_a_path_without_a_run_and_a_taken_port_are_refused(tmp_path):
    result = CliRunner().invoke(cli, ["page", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds no history (history.jsonl); must be the folder of a run" in result.output
    write(tmp_path / "md", lines_of([]))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = CliRunner().invoke(cli, ["page", str(tmp_path / "md"), "--port", str(port)])
    assert result.exit_code == 2
    assert result.output == f"port = {port}: Address already in use; choose another one with --port\n"


@pytest.mark.slow
@pytest.mark.parametrize("option", [[], ["--page"]])
def test_a_page_beside_a_simulation(tmp_path, option):
    size = ("--clients", "4", "--rounds", "2", "--per-round", "2", "--quiet", "--out", str(tmp_path / "run"))
    result = CliRunner().invoke(cli, ["simulate", "--engine", "batched", *size, *option])
    assert result.exit_code == 0, result.output
    shown = re.search(r"live page: http://127.0.0.1:\d+/SECRET/ with the SECRET in \S+", result.output)
    assert bool(shown) == bool(option)
    assert (f"cohort page {tmp_path / 'run'}" in result.output) == bool(option)


def test_a_server_keeps_the_address_of_its_page(tmp_path):
    server = Server(tmp_path, hosts=("localhost",))
    server.save()
    token = kept_token(server.page_secret)
    assert kept_token(Server.load(tmp_path).page_secret) == token
    assert (tmp_path / "pki" / "page.secret").stat().st_mode & 0o077 == 0
