"""An app server imports an app once. Each message runs in a process of its own that is forked from it."""

import hashlib
import os
import re
import signal
import socket
from logging import getLogger
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.cli.build import build_fab_from_disk

from deploy.engines import local_cluster
from deploy.flower import fork_client
from deploy.flower.commands import APP_SERVER, LAUNCHER
from deploy.flower.patches.apps import app_servers
from deploy.flower.patches.apps.app_servers import AppServers
from deploy.processes.groups import processes_with, wait_until

pytestmark = pytest.mark.skipif(not app_servers.supported(), reason="app servers run on Linux")
MARK = "COHORT_TEST"
PYPROJECT = """
[project]
name = "toy"
version = "1.0.0"
license = { text = "Apache-2.0" }
[tool.flwr.app]
publisher = "cohort"
[tool.flwr.app.components]
serverapp = "toy:client"
clientapp = "toy:client"
"""
APP = """
import atexit, os, random, sys
import numpy as np
from flwr.clientapp import ClientApp
client = ClientApp()
{0}
def said():
    print('said', os.getpid(), os.getppid(), random.random(), np.random.random(), flush=True)
atexit.register(said)
"""


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    environment = {**os.environ, MARK: str(folder)}
    server = fork_client.start_fork_server(LAUNCHER, ["flwr-clientapp", APP_SERVER], environment)
    yield server
    server.close()
    assert wait_until(lambda: not processes_with(MARK, str(folder)), 10)


class Node:
    """What a SuperNode has: a bundle, and its app servers."""

    def __init__(self, folder, forks):
        self.servers, self._folder, self._forks = AppServers(), folder, forks
        self.outputs = 0

    def fork(self, code):
        """Fork the process of a message of an app that runs some code when it is imported."""
        app = self._folder / "app"
        app.mkdir(exist_ok=True)
        (app / "pyproject.toml").write_text(PYPROJECT)
        (app / "toy.py").write_text(APP.replace("{0}", code))
        content = build_fab_from_disk(app)
        run = SimpleNamespace(
            fab_id="cohort/toy", fab_version="1.0.0", fab_hash=hashlib.sha256(content).hexdigest()
        )
        self.outputs += 1
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT, 0o600)
        ours, its = socket.socketpair()
        try:
            with ours, its:
                return self.servers.fork(
                    self._forks,
                    run,
                    SimpleNamespace(content=content),
                    ["flwr-clientapp", "--help"],
                    output,
                    its.fileno(),
                )
        finally:
            os.close(output)

    @property
    def output(self):
        """The file with the output of the last message."""
        return self._folder / f"output-{self.outputs}"

    def said(self, code):
        """Return what the app prints at the end of a message: its process, the app server, random numbers."""
        assert self.fork(code)
        line = re.compile(r"^said (.*)\n", re.MULTILINE)
        assert wait_until(lambda: bool(line.search(self.output.read_text())), 20), self.output.read_text()
        return line.findall(self.output.read_text())[0].split()

    @property
    def pids(self):
        return [each.pid for each in self.servers._servers.values()]


@pytest.fixture
def node(tmp_path, forks, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(getLogger("flwr"), "propagate", True)
    node = Node(tmp_path, forks)
    yield node
    pids = node.pids
    for digest in list(node.servers._servers):
        node.servers._end(digest, 0.0)
    assert wait_until(lambda: not any(map(is_running, pids)), 10)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_messages_are_forked_from_one_process_and_leak_no_descriptors(node, tmp_path):
    imported = f"open({str(tmp_path / 'imports')!r}, 'a').write('x')"
    first = node.said(imported)
    (server,) = node.pids
    here, there = (len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (os.getpid(), server))
    said = [first, *(node.said(imported) for _ in range(5))]
    assert (tmp_path / "imports").read_text() == "x"
    assert {int(parent) for _, parent, *_ in said} == {server}
    assert all(len({each[place] for each in said}) == 6 for place in (0, 2, 3))
    assert wait_until(lambda: len(list(Path(f"/proc/{server}/fd").iterdir())) == there, 5)
    assert len(list(Path(f"/proc/{os.getpid()}/fd").iterdir())) == here


def test_what_an_app_seeds_when_it_is_imported_is_the_same_in_every_message(node):
    code = "random.seed(1); np.random.seed(1)"
    assert node.said(code)[2:] == node.said(code)[2:]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "threads",
        ),
        ("generator = np.random.default_rng()", "draws random numbers .*toy.py, line 6"),
        ("generator = random.Random()", "draws random numbers"),
        ("import secrets; key = secrets.token_bytes()", "draws random numbers"),
        ("raise OSError('no such data')", "OSError: no such data"),
    ],
    ids=["threads", "numpy", "python", "secrets", "fails"],
)
def test_an_app_that_cannot_be_forked_is_imported_by_each_message(node, caplog, code, reason):
    assert not node.fork(code)
    assert not node.fork(code)
    (warning,) = caplog.messages
    assert re.search(f"Each message imports the app of bundle .*{reason}", warning)
    assert node.pids == []


def test_a_changed_bundle_gets_an_app_server_of_its_own_and_an_idle_one_ends(node, monkeypatch):
    assert node.said("one = 1")[1] != node.said("two = 2")[1]
    pids = node.pids
    assert len(pids) == 2
    node.servers.end_idle()
    assert node.pids == pids
    monkeypatch.setattr(app_servers, "IDLE", 0.0)
    node.servers.end_idle()
    assert node.pids == []
    assert wait_until(lambda: not any(map(is_running, pids)), 10)


def test_a_killed_app_server_is_replaced(node):
    before = node.said("three = 3")[1]
    os.kill(int(before), signal.SIGKILL)
    assert wait_until(lambda: not is_running(int(before)), 5)
    assert node.said("three = 3")[1] != before


def test_an_import_that_never_ends_does_not_outlive_its_supernode(node, monkeypatch):
    monkeypatch.setattr(app_servers, "FIRST_WAIT", 0.5)
    assert not node.fork("import time; time.sleep(600)")
    (pid,) = node.pids
    assert is_running(pid)
    node.servers._end(next(iter(node.servers._servers)), 0.0)
    assert wait_until(lambda: not is_running(pid), 10)


ISOLATED = """
import os, signal
from pathlib import Path
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client = ClientApp()
server = ServerApp()
kept = []

@client.query("leak")
def leak(message, context):
    kept.append(bytearray(100_000_000))
    content = RecordDict({"n": MetricRecord({"kept": len(kept), "parent": os.getppid()})})
    return Message(content, reply_to=message)

@client.query("exit")
def leave(message, context):
    os._exit(3)

@client.query("kill")
def kill(message, context):
    os.kill(os.getpid(), signal.SIGKILL)

@server.main()
def main(grid, context):
    def ask(kind):
        (node,) = grid.get_node_ids()
        (reply,) = grid.send_and_receive([Message(RecordDict(), node, f"query.{kind}")], timeout=50)
        return "error" if reply.has_error() else dict(reply.content["n"])
    answers = [ask(kind) for kind in ("leak", "leak", "exit", "leak", "kill", "leak")]
    Path(str(context.run_config["file"])).write_text(repr(answers))
"""


@pytest.mark.network
def test_a_message_that_leaks_crashes_or_is_killed_touches_no_other(tmp_path):
    app, answers = tmp_path / "app", tmp_path / "answers"
    app.mkdir()
    settings = '[tool.flwr.app.config]\nfile = ""\n'
    (app / "pyproject.toml").write_text(PYPROJECT.replace("toy:client", "toy:server", 1) + settings)
    (app / "toy.py").write_text(ISOLATED)
    with local_cluster.LocalCluster(tmp_path / "run", 1, app=app, programs="patched") as running:
        run = running.submit({"file": str(answers)}, "toy")
        assert wait_until(answers.exists, 60), run.log.read_text()
        run.wait(20)
        answered = eval(answers.read_text())
        (parent,) = {int(each["parent"]) for each in answered if each != "error"}
        leak = {"kept": 1, "parent": parent}
        assert answered == [leak, leak, "error", leak, "error", leak]
        resident = Path(f"/proc/{parent}/status").read_text().partition("VmRSS:")[2].split()[0]
        assert int(resident) < 400_000  # kB: nothing that the messages kept
        (supernode,) = running.client_processes
        of_the_node = {
            pid
            for pid in processes_with(local_cluster.MARK, str(running.folder))
            if is_of(pid, supernode.pid)
        }
        assert parent in of_the_node
        os.kill(supernode.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(map(is_running, of_the_node)), 10)


def is_of(pid, ancestor):
    while pid > 1 and pid != ancestor:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == ancestor
