"""Runs on a SuperLink that is restarted meanwhile, tried with a stand-in for `flwr`."""

import json
import os
import time

import pytest

from deploy.engines import superlink
from deploy.engines.engine import EngineError
from deploy.engines.superlink import RunningSuperLink
from deploy.flower.flwr_cli import UNAVAILABLE

from ...support.processes import wait_for

# Answers each command with the next line of the file named after the command; the last line stays. The file
# "late" becomes the log when somebody asks whether the run has ended.
FLWR = """#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/asked"
if [ "$1" = log ]; then
    cat "$here/log"
    exit
fi
if [ "$1" = list ] && [ -f "$here/late" ]; then mv "$here/late" "$here/log"; fi
head -n 1 "$here/$1"
[ "$(wc -l < "$here/$1")" = 1 ] || sed -i 1d "$here/$1"
"""
AWAY = '{"success": false, "error-message": "Connection to the SuperLink is unavailable."}'
RUNNING = '{"success": true, "runs": [{"status": "running"}]}'
FAILED = '{"success": true, "runs": [{"status": "finished:failed", "status-details": "killed"}]}'


@pytest.fixture
def flwr(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "flwr").write_text(FLWR)
    (folder / "flwr").chmod(0o755)
    monkeypatch.setattr(superlink, "RETRY", 0.01)
    return folder


@pytest.fixture
def engine(flwr, tmp_path):
    (tmp_path / "app").mkdir()
    environment = {**os.environ, "PATH": f"{flwr}{os.pathsep}{os.environ['PATH']}"}
    return RunningSuperLink("cluster", tmp_path / "app", tmp_path, environment, forked=False)


def test_a_run_is_followed_over_restarts_and_each_line_of_its_log_is_printed_once(engine, flwr, capsys):
    (flwr / "run").write_text(f'{AWAY}\nA sentence first. {{"success": true, "run-id": 17}}\n')
    (flwr / "list").write_text(f"{AWAY}\n{RUNNING}\n{FAILED}\n")
    (flwr / "log").write_text("one\ntwo\nincompl")
    with engine:
        run = engine.submit({"seed": 1}, "md")
        assert run.run_id == "17"
        deadline = time.monotonic() + 60
        while not run.over:
            assert time.monotonic() < deadline
            if (flwr / "asked").read_text().count("list") == 1:
                (flwr / "log").write_text("one\ntwo\nincomplete\n")
        assert run.over
    assert run.last_words == "finished:failed: killed"
    assert capsys.readouterr().out == "one\ntwo\nincomplete\n"
    asked = (flwr / "asked").read_text()
    assert asked.count("log 17 cluster --stream") == 3
    assert asked.count("list cluster --run-id 17") == 3
    run.abort()
    assert "stop" not in (flwr / "asked").read_text()


def test_lines_that_the_last_stream_has_missed_are_printed(engine, flwr, capsys):
    """The SuperLink reads the log, then whether the run has ended, and then ends the stream."""
    (flwr / "list").write_text(f"{FAILED}\n")
    (flwr / "log").write_text("one\n")
    (flwr / "late").write_text("one\ntwo\n")
    with engine:
        run = engine.follow("17")
        wait_for(lambda: run.over, 60, lambda: "the run is not over")
    assert capsys.readouterr().out == "one\ntwo\n"


def test_a_run_that_flower_refuses_is_an_error(engine, flwr):
    (flwr / "run").write_text('{"success": false, "error-message": "no such app"}\n')
    with engine, pytest.raises(EngineError, match="md: Flower refused the run: no such app"):
        engine.submit({}, "md")


def test_a_run_is_submitted_again_while_errors_occur_in_the_superlink(engine, flwr, monkeypatch):
    """The nemesis found that a locked database ended a run whose ServerApp had been killed."""
    failing = '{"success": false, "error-message": "Using SuperLink: cluster\\n\\nInternal server error."}\n'
    (flwr / "run").write_text(f'{failing}{failing}{{"success": true, "run-id": 17}}\n')
    (flwr / "log").write_text("")
    with engine:
        assert engine.submit({}, "md").run_id == "17"
        (flwr / "run").write_text(failing)
        monkeypatch.setattr(superlink, "PATIENCE", 0.0)
        with pytest.raises(EngineError, match="Internal server error"):
            engine.submit({}, "md")


def test_an_error_after_an_outage_does_not_refuse_a_run(engine, flwr, monkeypatch):
    """The patience with errors began with the first attempt, although the SuperLink was away meanwhile."""
    monkeypatch.setattr(superlink, "PATIENCE", 0.2)
    monkeypatch.setattr(superlink, "RETRY", 0.3)
    away = json.dumps({"success": False, "error-message": UNAVAILABLE})
    failing = json.dumps({"success": False, "error-message": "Internal server error."})
    (flwr / "run").write_text(f'{away}\n{failing}\n{{"success": true, "run-id": 17}}\n')
    (flwr / "log").write_text("")
    with engine:
        assert engine.submit({}, "md").run_id == "17"
        refused = json.dumps({"success": False, "error-message": "no such app"})
        (flwr / "run").write_text(f"{failing}\n{refused}\n")
        with pytest.raises(EngineError, match="no such app"):
            engine.submit({}, "md")


def test_a_run_is_stopped(engine, flwr):
    (flwr / "log").write_text("")
    (flwr / "stop").write_text('{"success": true}\n')
    with engine:
        engine.follow("17").abort()
    assert "stop 17 cluster" in (flwr / "asked").read_text()


def test_a_run_that_the_superlink_does_not_know_is_over(engine, flwr):
    (flwr / "list").write_text('{"success": false, "error-message": "Run ID not found."}\n')
    assert engine.result("17") == "the SuperLink does not know the run"


def test_a_run_knows_whether_it_was_stopped(engine, flwr):
    (flwr / "run").write_text('{"success": true, "run-id": 17}\n')
    (flwr / "log").write_text("")
    stopped = '{"success": true, "runs": [{"status": "finished:stopped", "status-details": ""}]}'
    (flwr / "list").write_text(f"{AWAY}\n{RUNNING}\n{stopped}\n")
    with engine:
        run = engine.submit({}, "md")
        assert [run.stopped for _ in range(3)] == [False, False, True]
        assert run.over
