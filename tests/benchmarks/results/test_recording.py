"""Experiments and benchmarks are recorded with all that a reader needs to repeat them."""

import math

import pytest
from typer.testing import CliRunner

from benchmarks.command import bench
from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.running import digest_of, sources_of
from benchmarks.results.checking import outdated, renew
from benchmarks.results.files import Measured, Recorded, read, write
from benchmarks.results.machine import machine
from benchmarks.results.recording import measure, record_report
from deploy.flower.app_folder import CODE
from tests.benchmarks.results.toy_results import NAME, toy, toy_report


def test_a_recorded_experiment_has_its_origin_and_every_value(tmp_path, monkeypatch):
    each = toy(tmp_path, monkeypatch)
    report = toy_report(each)
    path = record_report(report, None, tmp_path / "results")
    found = read(path.parent)[NAME]
    assert isinstance(found, Recorded)
    assert found.values("md", "loss") == [1 / 3, 1 / 4, 1 / 5]
    assert (list(found.seeds), found.command) == ([0, 1, 2], "cohort bench papers toy --record")
    assert (found.sources, found.machine) == (digest_of(each), machine())
    assert list(found.seconds) == [1.0, 0.5, 2.0]
    assert outdated({NAME: found}) == []


def test_more_seeds_than_the_usual_are_part_of_the_command(tmp_path, monkeypatch):
    record_report(toy_report(toy(tmp_path, monkeypatch), seeds=4), None, tmp_path / "results")
    found = read(tmp_path / "results")[NAME]
    assert isinstance(found, Recorded)
    assert list(found.seeds) == [0, 1, 2, 3]
    assert found.command == "cohort bench papers toy --record --seeds 4"


@pytest.mark.parametrize("option", [["--quick"], ["--seeds", "2"]])
def test_only_the_whole_experiment_is_recorded(option):
    done = CliRunner().invoke(bench, ["papers", "delta-toy", "--record", *option])
    assert done.exit_code == 2
    assert "delta-toy is recorded in its full form only, with 3 seeds or more" in done.output


def test_an_experiment_depends_on_its_module_and_what_that_imports():
    found = {path.relative_to(CODE).as_posix() for path in sources_of(EXPERIMENTS["flics-variance"])}
    assert {
        "benchmarks/experiments/flics/variance_above_optimum.py",
        "simulation/availability/markov.py",
        "strategies/numerics/budget_allocation.py",
    } <= found
    assert not [name for name in found if name.startswith("benchmarks/experiments/osmd")]


@pytest.mark.slow
def test_a_benchmark_that_repeats_is_recorded_and_renewed_as_a_whole(tmp_path):
    path = measure("over-selection --rounds 5 --seeds 2", tmp_path)
    found = read(tmp_path)["over-selection"]
    assert isinstance(found, Measured)
    assert path.name == "over-selection.json"
    assert found.command == "cohort bench results --measure 'over-selection --rounds 5 --seeds 2'"
    assert {"selector", "factor", "bias"} <= set(found.output[0])
    assert all(math.isfinite(row["bias"]) for row in found.output)
    assert outdated({found.name: found}) == []

    old = Measured(**{**vars(found), "sources": "of old"})
    assert outdated({found.name: old}) == [old]
    assert renew(old, None, tmp_path) == []
    new = read(tmp_path)["over-selection"]
    assert isinstance(new, Measured)
    assert (new.sources, len(new.renewed)) == (found.sources, 1)

    write(wrong := Measured(**{**vars(old), "output": [*old.output[1:]]}), tmp_path)
    assert renew(wrong, None, tmp_path) == ["over-selection: its output differs"]


def test_a_benchmark_that_fails_is_not_recorded(tmp_path):
    with pytest.raises(ValueError, match=r"cohort bench over-selection --rounds 0 --json: ended with exit"):
        measure("over-selection --rounds 0", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_module_with_an_experiments_settings_counts_beside_that_of_its_function():
    """The function of DELTA's tables is in training.py; the federation and the rates are in mnist.py."""
    found = {path.relative_to(CODE).as_posix() for path in sources_of(EXPERIMENTS["delta-table-3"])}
    assert {f"benchmarks/experiments/delta/{name}.py" for name in ("training", "mnist")} <= found
