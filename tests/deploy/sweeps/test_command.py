"""`cohort sweep`: its files, and what happens after a kill, an edit and a wrong command."""

import csv
import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.processes.groups import processes_with, wait_until
from strategies import extensions

MARK = "COHORT_TEST_OF_SWEEPS"
GRID = """\
selector = ["uniform", "md"]
local-steps = [1, 3]
seed = "1-2"
num-clients = 5
clients-per-round = 2
num-rounds = 3
"""
OWN = """\
import numpy as np
from flwr_cohort import ProbabilitySelector, Selector
from flwr_cohort.selectors import Selector as Same, register
from helper import POWER

assert Selector is Same

@register
class BySize(ProbabilitySelector):
    '''In proportion to a power of the clients' sizes.'''

    name = "by-size"
    summary = "by size"

    def _distribution(self):
        p = np.where(self._registered, self.client_sizes ** POWER, 0.0)
        return p / p.sum()
"""


def sweep(folder, *options, check=True):
    run = subprocess.run(command(*options), cwd=folder, capture_output=True, text=True, check=False)
    assert not check or run.returncode == 0, run.stdout + run.stderr
    return run


def command(*options):
    program = (sys.executable, "-c", "from deploy.command import main; main()")
    return [*program, "sweep", "sweep.toml", "--out", "out", "--jobs", "1", *options]


def rows(folder):
    with (folder / "out" / "results.csv").open() as file:
        return list(csv.DictReader(file))


def without_seconds(found):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found]


def written(folder):
    """Return when the result of each trial was written, by the name of the trial's folder."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("out/trials/*/result.json")}


@pytest.mark.slow
def test_a_sweep_writes_its_results_and_continues_after_a_kill(tmp_path):
    """One grid, trained without and with a kill; then a trial's result is damaged."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        (folder / "sweep.toml").write_text(GRID)
    printed = sweep(whole).stdout
    assert "8/8" in printed
    found = rows(whole)
    assert list(found[0])[:6] == ["selector", "settings", "local-steps", "seed", "accuracy", "loss"]
    assert [(row["selector"], row["settings"], row["seed"]) for row in found[:3]] == [
        ("uniform", "local-steps=1", "1"),
        ("md", "local-steps=1", "1"),
        ("uniform", "local-steps=1", "2"),
    ]
    assert all(0 < float(row["accuracy"]) < 1 and float(row["loss"]) > 0 for row in found)
    content = json.loads((whole / "out" / "results.json").read_text())
    assert [len(content[name]) for name in ("trials", "cells", "comparisons")] == [8, 4, 4]
    assert content["cells"][0]["accuracy"]["half"] > 0
    text = (whole / "out" / "results.md").read_text()
    assert "| local-steps=1 | uniform |" in text
    assert "## Differences in accuracy" in text
    assert (whole / "out" / "results.png").stat().st_size > 1000

    environment = {**os.environ, MARK: str(killed)}
    running = subprocess.Popen(command(), cwd=killed, env=environment, stdout=subprocess.DEVNULL)
    assert wait_until(lambda: len(written(killed)) >= 2, 60)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert wait_until(lambda: not processes_with(MARK, str(killed)), 20)  # its workers have ended too
    before = written(killed)
    assert 2 <= len(before) < 8
    damaged = sorted(before)[0]
    (killed / "out" / "trials" / damaged / "result.json").write_text('{"digest"')
    printed = sweep(killed).stdout
    assert f"{len(before) - 1} are finished already" in printed
    after = written(killed)
    assert {name for name, when in before.items() if after[name] != when} == {damaged}
    assert without_seconds(rows(killed)) == without_seconds(found)


@pytest.mark.slow
def test_a_users_selector_is_imported_and_trained_again_after_an_edit(tmp_path):
    grid = GRID.replace('["uniform", "md"]', '["md", "by-size"]').replace("[1, 3]", "3").replace("1-2", "1")
    (tmp_path / "sweep.toml").write_text(f'{grid}import = "my.py"\n')
    (tmp_path / "my.py").write_text(OWN)
    (tmp_path / "helper.py").write_text("POWER = 1.0\n")
    sweep(tmp_path)
    first, before = rows(tmp_path), written(tmp_path)
    assert first[0]["digest"] != first[1]["digest"]
    sweep(tmp_path)
    assert written(tmp_path) == before
    (tmp_path / "helper.py").write_text("POWER = -1.0\n")  # a file that the user's file imports
    printed = sweep(tmp_path).stdout
    assert "are finished already" not in printed
    second = rows(tmp_path)
    assert second[1]["loss"] != first[1]["loss"]
    assert second[0]["loss"] == first[0]["loss"]  # of md: trained again, with the same result


@pytest.mark.slow
def test_a_failing_trial_does_not_stop_the_others(tmp_path):
    (tmp_path / "sweep.toml").write_text(GRID.replace("[1, 3]", "1").replace('"md"', '"by-size"'))
    (tmp_path / "helper.py").write_text("POWER = 1.0\n")
    (tmp_path / "my.py").write_text(OWN.replace("return p / p.sum()", "raise RuntimeError('on purpose')"))
    run = sweep(tmp_path, "--import", "my.py", check=False)
    assert run.returncode == 1
    assert "by-size seed 1: RuntimeError: on purpose" in run.stderr
    assert [row["selector"] for row in rows(tmp_path)] == ["uniform", "uniform"]


@pytest.mark.slow
def test_results_that_cannot_be_written_are_an_error_in_one_line(tmp_path):
    (tmp_path / "sweep.toml").write_text(GRID.replace("[1, 3]", "1").replace('["uniform", "md"]', '["md"]'))
    (tmp_path / "out" / "results.csv").mkdir(parents=True)
    run = sweep(tmp_path, check=False)
    assert run.returncode == 1
    assert "out: the results cannot be written: Is a directory; run the command again\n" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--import", "none.py"), "none.py': cannot be imported: FileNotFoundError: there is no such file"),
        (("--import", "bad.py"), "bad.py': cannot be imported: SyntaxError"),
        (("--import", "no_such_module"), "import = 'no_such_module': cannot be imported"),
        (("--on", "ray"), "jobs = 1: cannot be combined with --on ray"),
        (("--track", "nope"), "track = 'nope'"),
    ],
)
def test_a_wrong_command_is_refused(tmp_path, monkeypatch, options, message):
    (tmp_path / "sweep.toml").write_text(GRID)
    (tmp_path / "bad.py").write_text("def")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(extensions.VARIABLE, "")
    result = CliRunner().invoke(cli, ["sweep", "sweep.toml", "--out", "out", "--jobs", "1", *options])
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()
