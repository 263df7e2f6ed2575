"""Selectors and tasks of the user: `--import` in each command, and entry points of installed packages."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from strategies import extensions

OWN = """\
import numpy as np
from flwr_cohort import ProbabilitySelector, Selector
from flwr_cohort.selectors import register
from tasks import register as register_task
from tasks.models.softmax import Softmax
import flwr_cohort.selectors.base, strategies

assert Selector is strategies.Selector is flwr_cohort.selectors.base.Selector

@register
class BySize(ProbabilitySelector):
    '''In proportion to the clients' sizes.'''

    name = "by-size"
    summary = "by size"

    def _distribution(self):
        p = np.where(self._registered, self.client_sizes, 0.0)
        return p / p.sum()

@register_task("plain", learning_rate=0.2)
def plain(*, partition, data_dir):
    return Softmax("digits", partition=partition, data_dir=data_dir, bias=False)
"""
PROGRAM = (sys.executable, "-c", "from deploy.command import main; main()")
SMALL = (
    *("--clients", "3", "--rounds", "2", "--per-round", "2", "--task", "plain", "--selector", "by-size"),
    *("--out", "out", "--quiet"),
)


def cohort(folder, *arguments, **environment):
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def here(*arguments):
    """Run the command in this process, which does not know the user's selector."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv(extensions.VARIABLE, "")
        return CliRunner().invoke(cli, arguments)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my.py").write_text(OWN)
    return tmp_path


def losses(folder):
    lines = map(json.loads, (folder / "out" / "by-size" / "history.jsonl").read_text().splitlines())
    return [line["test_loss"] for line in lines if line["type"] == "round"]


def test_simulate_trains_with_the_users_selector_and_task(folder):
    run = cohort(folder, "simulate", "--engine", "batched", *SMALL, "--import", "my.py")
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(losses(folder)) == 3
    refused = here("simulate", "--engine", "batched", "--resume", str(folder / "out"))
    assert refused.exit_code == 2
    assert "selector = 'by-size': is not known; give the option --import of the run again" in refused.stderr


@pytest.mark.slow
@pytest.mark.network
def test_the_processes_of_up_import_the_users_file(folder):
    run = cohort(folder, "up", *SMALL, "--import", "my.py")
    assert run.returncode == 0, run.stdout + run.stderr
    found = losses(folder)
    assert len(found) == 3
    assert found[-1] < found[0]


@pytest.mark.slow
def test_an_installed_package_registers_itself_and_a_broken_one_stops_nothing(folder):
    """Two packages on the path, one of them broken; a third registers the same name again."""
    package = folder / "packages"
    (package / "plug-1.0.dist-info").mkdir(parents=True)
    (package / "plug-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\n")
    (package / "plug-1.0.dist-info" / "entry_points.txt").write_text(
        "[cohort.selectors]\nby-size = plug:BySize\nbroken = no_such_module:Thing\n"
        "[cohort.tasks]\nplain = plug\n"
    )
    (package / "plug.py").write_text(OWN.replace("@register\nclass", "class"))
    (folder / "sweep.toml").write_text(
        'selector = "by-size"\ntask = "plain"\nnum-clients = 3\nclients-per-round = 2\nnum-rounds = 1\n'
    )
    run = cohort(folder, "sweep", "sweep.toml", "--dry-run", PYTHONPATH=str(package))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "by-size seed 1" in run.stdout
    assert "entry point broken = no_such_module:Thing cannot be loaded" in run.stderr


def test_bench_takes_the_option(folder):
    (folder / "noisy.py").write_text("print('imported')")
    assert "imported" in here("bench", "--import", str(folder / "noisy.py"), "papers", "--list").stdout
    refused = here("bench", "--import", "none.py", "papers", "--list")
    assert refused.exit_code == 2
    assert "none.py': cannot be imported: FileNotFoundError" in refused.stderr


def test_a_name_that_is_taken_is_refused(folder):
    (folder / "taken.py").write_text(OWN.replace('"by-size"', '"uniform"'))
    refused = here("simulate", "--engine", "ray", *SMALL, "--import", str(folder / "taken.py"))
    assert refused.exit_code == 2
    assert "name = 'uniform': is taken by UniformSelector" in refused.stderr


def test_a_path_that_the_environment_variable_cannot_hold_is_refused(monkeypatch):
    monkeypatch.setenv(extensions.VARIABLE, "")
    with pytest.raises(ValueError, match=f"must not contain '{os.pathsep}'"):
        extensions.name_modules([f"a{os.pathsep}b.py"])
