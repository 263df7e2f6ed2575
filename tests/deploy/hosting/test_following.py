"""A run is followed by one process; what it leaves is carried on by a front end that has the run's folder."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.engines.engine import EngineError
from deploy.engines.superlink import RunningSuperLink
from deploy.fleet.storage import followers
from deploy.fleet.storage.followers import Followers
from deploy.fleet.storage.postgres import NOW
from deploy.flower.commands import FRONT_END
from deploy.hosting import following
from deploy.hosting.following import FollowedSuperLink, LeftRuns
from deploy.hosting.programs import MARK, Programs
from deploy.hosting.server import Server, ServerError
from server.settings import CHECKPOINTS

from ...support.histories import write_history
from ...support.processes import linux, wait_for

RUN = "2026-01-02_03-04-05"
SILENT = f"UPDATE cohort_follower SET seen = {NOW} - {followers.LEASE + 1}"
CLAIM = """
import sys
from strategies.checkpoint import CheckpointFolder
folder = CheckpointFolder(sys.argv[1])
folder.claim()
print(flush=True)
sys.stdin.read()
"""

SERVERAPP = """
import time
from pathlib import Path
Path("/proc/self/comm").write_text("flwr-serverapp")
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def server(tmp_path, postgres):
    runs = tmp_path / "shared"
    runs.mkdir()
    server = Server(
        tmp_path / "server", ("localhost",), control_port=1, database=postgres.database(), runs=str(runs)
    )
    server.save()
    return server


@pytest.fixture
def superlink(monkeypatch):
    """What Flower answers: how the run 17 has ended, and the commands that it got."""
    flower = SimpleNamespace(result="", asked=[])

    def flwr(self, *arguments):
        flower.asked.append(arguments)
        if arguments[0] == "run":
            return {"success": True, "run-id": 18}
        status, _, details = flower.result.partition(": ")
        return {"success": True, "runs": [{"status": status or "running", "status-details": details}]}

    monkeypatch.setattr(RunningSuperLink, "flwr", flwr)
    stream = SimpleNamespace(is_open=False, new_lines=lambda: [], close=lambda: None)
    monkeypatch.setattr(RunningSuperLink, "open_log", lambda self, run: stream)
    monkeypatch.setattr("deploy.engines.superlink.copy_app", lambda *_: None)
    monkeypatch.setattr("deploy.engines.superlink.Flwr.fork", lambda self: None)
    return flower


def test_the_runs_of_a_server_can_be_in_a_folder_that_others_have_too(tmp_path, server):
    link, shared = server.folder / "runs", tmp_path / "shared"
    (link / RUN).mkdir()
    assert (shared / RUN).is_dir()
    server.save()
    assert Server.load(server.folder).place == str(shared)
    alone = replace(server, runs="")
    alone.save()
    assert not link.is_symlink()
    assert list(link.iterdir()) == []
    assert alone.place == f"{server.home}/runs"
    assert (shared / RUN).is_dir()
    (link / RUN).mkdir()
    with pytest.raises(ServerError, match=f"{link} holds runs already; move them there first"):
        server.save()
    assert (link / RUN).is_dir()
    (link / RUN).rmdir()
    other = tmp_path / "other"
    other.mkdir()
    for each in (server, replace(server, runs=str(other))):
        each.save()
        assert link.readlink() == type(link)(each.runs)
    link.unlink()
    link.mkdir()  # where storage is mounted
    (link / RUN).mkdir()
    replace(server, runs=str(link)).save()
    assert [each.name for each in link.iterdir()] == [RUN]
    assert not link.is_symlink()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ("--runs", "{}/none", "--database", "{}"),
            "runs = {}/none: must be a folder in which",
        ),
        (
            ("--runs", "{}/file", "--database", "{}"),
            "runs = {}/file: must be a folder in which",
        ),
        (("--runs", "{}"), "runs = {}: needs --database"),
    ],
)
def test_a_folder_of_runs_that_cannot_be_used_is_refused(tmp_path, postgres, options, reason):
    (tmp_path / "file").touch()
    database = postgres.database(empty=True)
    given = [
        database if before == "--database" else each.format(tmp_path)
        for before, each in zip(("", *options), options, strict=False)
    ]
    up = ["server", "up", "--dir", str(tmp_path / "server"), "--host", "localhost"]
    result = CliRunner().invoke(cli, [*up, *given])
    assert result.exit_code == 2
    (line,) = result.output.strip().splitlines()
    assert line.startswith(reason.format(tmp_path))
    assert not (tmp_path / "server").exists()


def test_a_run_that_is_followed_elsewhere_is_not_followed_here(server, postgres, superlink):
    folder = server.folder / "runs" / RUN
    there = Followers(server.database, server.place)
    assert there.claim(RUN, "1", "far:/server") == ""
    with pytest.raises(ServerError, match=f"run = {RUN}: the front end far:/server follows it already"):
        FollowedSuperLink(server, folder).__enter__()
    postgres.execute(SILENT, server.database)
    with FollowedSuperLink(server, folder) as here:
        here.check()
        postgres.execute(SILENT, server.database)
        assert there.claim(RUN, "1", "far:/server") == ""
        here.check()  # it has just asked
        here._told = -followers.BEAT
        with pytest.raises(EngineError, match="another front end follows it now"):
            here.flwr("list")
    assert there.lives(RUN, "1")
    assert superlink.asked == []
    elsewhere = server.folder / "elsewhere" / RUN  # no run of this folder: nobody carries it on
    with FollowedSuperLink(server, elsewhere), FollowedSuperLink(server, elsewhere):
        pass


def test_a_run_is_left_to_others_if_its_follower_is_interrupted_and_ends_otherwise(server, superlink):
    folder = server.folder / "runs" / RUN
    folder.mkdir()
    config = {"output-dir": str(folder)}
    others = Followers(server.database, server.place)
    with FollowedSuperLink(server, folder) as here:
        here.submit(config, RUN)
    assert (folder / "flower-run").read_text() == "18"
    assert others.left() == set()
    for submits in (False, True):
        here = FollowedSuperLink(server, folder).__enter__()
        if submits:
            here.submit(config, RUN)
        here.__exit__(KeyboardInterrupt)
        assert others.left() == ({RUN} if submits else set())


def test_a_run_whose_serverapp_works_is_followed_and_not_submitted_again(server, superlink):
    folder = server.folder / "runs" / RUN
    folder.mkdir()
    (folder / "flower-run").write_text("17")
    command = [sys.executable, "-c", CLAIM, str(folder / CHECKPOINTS)]
    with (
        FollowedSuperLink(server, folder) as here,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as app,
    ):
        app.stdout.readline()
        assert here.submit({"output-dir": str(folder)}, RUN).run_id == "17"
        superlink.result = "finished:failed: gone"
        assert here.submit({"output-dir": str(folder)}, RUN).run_id == "18"
        assert "stop" not in [asked[0] for asked in superlink.asked]
        app.kill()
    (folder / "flower-run").write_text("17")
    superlink.result, superlink.asked[:] = "", []
    with FollowedSuperLink(server, folder) as here:  # of a machine that has died
        assert here.submit({"output-dir": str(folder)}, RUN).run_id == "18"
    assert [asked[0] for asked in superlink.asked] == ["list", "stop", "run"]
    assert superlink.asked[1][1] == "17"


def test_a_run_without_a_follower_is_carried_on_by_a_process_that_ends_with_the_server(
    server, postgres, monkeypatch
):
    clock, said = SimpleNamespace(now=1000.0), []
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: clock.now))
    left = LeftRuns(server, said.append)
    there = Followers(server.database, server.place)
    there.claim(RUN, "1", "far:/server")
    there.claim("other", "2", "far:/server")

    def look(times=1):
        for _ in range(times):
            clock.now += followers.BEAT
            left.check()
        return len(said)

    assert look(3) == 0
    postgres.execute(SILENT, server.database)
    assert look(3) == 0  # no front end sees a history of these runs
    write_history(server.folder / "runs" / RUN, [2.0])  # it has ended: there is nothing to do
    left._left.clear()
    assert look() == 0  # its follower may be about to say that it lives
    assert look() == 1
    (text,) = said
    log = server.folder / "logs" / "followed.log"
    assert text == f"{RUN}: its follower has ended; it is carried on here (log: {log})"
    (process,) = left._processes
    environment = following.Path("/proc") / str(process.pid) / "environ"
    wait_for(environment.read_bytes, 20, log.read_text)  # empty until the kernel has started the program
    assert f"{MARK}={server.folder}".encode() in environment.read_bytes()
    assert there.left() == {"other"}
    assert look(5) == 1
    process.kill()
    process.wait()
    postgres.execute(SILENT, server.database)
    assert look(2) == 2
    (again,) = left._processes
    again.kill()
    again.wait()
    postgres.execute(SILENT, server.database)
    (server.folder / "logs").rename(server.folder / "full")
    assert look(2) == 2  # no log: it is left to others


@linux
def test_a_server_that_ends_kills_its_serverapps_before_anything_asks_them_to_end(server, monkeypatch):
    programs = Programs(server, print)
    assert programs._superexec.environment()[FRONT_END] == server.home
    environment = {**os.environ, MARK: str(server.folder)}
    with subprocess.Popen([sys.executable, "-c", SERVERAPP], env=environment, stdout=subprocess.PIPE) as app:
        app.stdout.readline()
        asked = []
        monkeypatch.setattr(programs._superexec, "stop", lambda: asked.append(app.wait(20)))
        programs.__exit__()
    assert asked == [-signal.SIGKILL]


@pytest.mark.parametrize("how", ["its history has ended", "somebody stopped it"])
def test_a_run_that_is_over_is_only_taken_off_the_list(server, postgres, superlink, monkeypatch, capsys, how):
    folder = server.folder / "runs" / RUN
    write_history(folder, [2.0, 1.0], "md", end=how == "its history has ended")
    (folder / "flower-run").write_text("17")
    superlink.result = "finished:completed" if how == "its history has ended" else "finished:stopped"
    there = Followers(server.database, server.place)
    there.claim(RUN, "1", "far:/server")
    monkeypatch.setattr(sys, "argv", ["following", str(server.folder), RUN, "2"])
    assert following.main() == 2
    assert f"{RUN}: run = {RUN}: the front end far:/server follows it already" in capsys.readouterr().out
    postgres.execute(SILENT, server.database)
    assert following.main() == (0 if how == "its history has ended" else 1)
    assert postgres.execute("SELECT * FROM cohort_follower", server.database) == []
    assert "run" not in [asked[0] for asked in superlink.asked]
