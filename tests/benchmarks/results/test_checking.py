"""Results that no longer fit the code are found, and renewed if a rerun seed is equal."""

import pickle

import pytest
from typer.testing import CliRunner

from benchmarks.command import bench
from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.running import digest_of
from benchmarks.results import checking, command
from benchmarks.results.checking import (
    differences,
    need_gpu,
    outdated,
    renew,
    rerun,
    sample,
    write_pages,
    wrong_pages,
)
from benchmarks.results.files import Measured, Recorded, read, write
from benchmarks.results.machine import machine
from tests.benchmarks.results.toy_results import NAME, toy, toy_recorded, toy_report
from tests.support.toy_experiments import experiment, seeds_run


@pytest.fixture(autouse=True)
def called(monkeypatch):
    """Rerun seeds in this process, and return the variables of the processes; test_files.py has a process."""
    called = []

    def call_with(environment, function, *arguments):
        called.append(environment)
        function, arguments = pickle.loads(pickle.dumps((function, arguments)))
        return pickle.loads(pickle.dumps(function(*arguments)))

    monkeypatch.setattr(checking.fresh, "call_with", call_with)
    return called


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Results of the toy that other code recorded."""
    return toy_recorded(toy_report(toy(tmp_path, monkeypatch)))


def changed(result, seed, value, **changes):
    values = list(result.rows["md"]["loss"])
    values[seed] = value
    return Recorded(**{**vars(result), "rows": {"md": {"loss": values}}, **changes})


def found(result, seed):
    (again,) = rerun([(result, seed)], None)
    return differences(result, seed, again)


def test_results_of_other_code_are_outdated_until_a_seed_was_equal(tmp_path, old):
    assert [each.name for each in outdated({NAME: old})] == [NAME]
    assert renew(old, None, tmp_path / "results") == []
    new = read(tmp_path / "results")[NAME]
    assert isinstance(new, Recorded)
    assert outdated({NAME: new}) == []
    (note,) = new.renewed
    # Seed 1 took the least time.
    assert (note["seed"], note["before"], note["equal"]) == (1, "of old", "bit for bit")
    assert (new.measured, new.commit, new.rows) == (old.measured, old.commit, old.rows)


def test_results_that_need_a_gpu_are_checked_only_where_there_is_one(tmp_path, monkeypatch, old):
    monkeypatch.setitem(EXPERIMENTS, NAME, experiment(tmp_path, seeds=3, gpu=True))
    for model, unchecked in (("", [NAME]), ("H200", [])):
        monkeypatch.setattr(checking, "gpu", lambda model=model: model)
        assert [each.name for each in need_gpu({NAME: old})] == unchecked
        assert [each.name for each in outdated({NAME: old})] == ([] if unchecked else [NAME])


def test_a_seed_that_differs_in_the_last_bit_is_not_renewed(tmp_path, old):
    wrong = changed(old, 1, 0.25 + 2**-54)
    assert renew(wrong, None, tmp_path / "results") == [
        "toy, seed 1, md | loss: recorded 0.25000000000000006, now 0.25"
    ]
    assert not (tmp_path / "results").exists()


def test_on_another_machine_values_may_differ_by_the_tolerance(old):
    other = {**machine(), "cpu": "another"}
    assert found(changed(old, 1, 0.25 + 1e-9, machine=other), 1) == []
    assert found(changed(old, 1, 0.9, machine=other), 1) == []  # within three deviations
    assert found(changed(old, 1, 9e9, machine=other), 0) == []
    assert found(changed(old, 1, None, machine=other), 1) == []  # NaN: a goal that was not reached
    renamed = Recorded(**{**vars(old), "rows": {"md": {"accuracy": [1.0] * 3}}, "machine": other})
    assert len(found(renamed, 0)) == 2
    steady = Recorded(**{**vars(old), "rows": {"md": {"loss": [0.4] * 3}}, "machine": other})
    assert len(found(steady, 1)) == 1


def test_seeds_with_the_same_instructions_are_rerun_in_one_process(old, called, monkeypatch):
    """A process for each seed took four times as long as the seeds."""
    fewer = changed(old, 1, 0.25, machine={"name": "fewer"})
    monkeypatch.setattr(checking, "restricted_to", lambda other: {"A": "1"} if "name" in other else {})
    again = rerun([(fewer, 0), (old, 1), (fewer, 2)], None)
    assert called == [{"A": "1"}, {}]
    assert [each.values for each in again] == [rerun([(old, seed)], None)[0].values for seed in range(3)]


def test_a_failed_seed_is_a_difference(tmp_path, old):
    (tmp_path / "fail-2").touch()
    (reason,) = found(old, 2)
    assert reason.startswith("toy, seed 2: failed: ValueError: seed 2 is a bad one")


def test_cells_that_are_new_or_missing_are_differences(old):
    renamed = Recorded(**{**vars(old), "rows": {"md": {"accuracy": [1.0] * 3}}})
    assert found(renamed, 0) == [
        "toy, seed 0, md | accuracy: recorded 1.0, now None",
        "toy, seed 0, md | loss: not recorded",
    ]


def test_a_sample_is_repeatable_and_stays_within_its_budget(old):
    draws = [[seed for _, seed in sample({NAME: old}, number, 1.6, None)] for number in range(20)]
    assert len(set(map(tuple, draws))) > 1
    assert draws[7] == [seed for _, seed in sample({NAME: old}, 7, 1.6, None)]
    seconds = dict(zip(old.seeds, old.seconds, strict=True))
    for chosen in draws:
        assert 0 < sum(seconds[seed] for seed in chosen) <= 1.6
        assert 2 not in chosen  # took two seconds
    assert {seed for _, seed in sample({NAME: old}, 0, 99, None)} == {0, 1, 2}


def test_an_edited_page_is_found_and_written_again(tmp_path):
    results = {name: each for name, each in read().items() if name == "osmd-f6"}
    page = tmp_path / "results" / "osmd.md"
    page.parent.mkdir()
    (tmp_path / "results.md").write_text("By hand.\n\n<!--verdicts-->\n<!--end-->\n")
    page.write_text("Of mine.\n<!--table osmd-f6-->\nold\n<!--end-->\n<!--table osmd-f1-->\n<!--end-->\n")
    write_pages(results, tmp_path)
    assert wrong_pages(results, tmp_path) == []
    text = page.read_text()
    assert text.startswith("Of mine.\n<!--table osmd-f6-->\nMean ± standard deviation over 20 seeds")
    assert "No results yet. `cohort bench papers osmd-f1 --record` makes them.\n<!--end-->" in text
    page.write_text(text.replace("0.", "0.9", 1).replace("Of mine", "Ours"))
    assert wrong_pages(results, tmp_path) == [
        "docs/results/osmd.md differs from the data files: `make results` mends it"
    ]
    assert write_pages(results, tmp_path) == [page]
    assert page.read_text() == text.replace("Of mine", "Ours")
    lost = {**results, "lost": Measured("lost", "2026-01-01", "c", "abc", {}, [])}
    assert wrong_pages(lost, tmp_path) == ["results/lost.json is on no page"]


def test_the_pages_of_this_repository_are_those_of_its_data_files():
    assert wrong_pages(read()) == []


@pytest.fixture
def only_the_toy(tmp_path, monkeypatch, old):
    """The command sees the toy's results only, which are of the present code."""
    folder = tmp_path / "results"
    now = Recorded(**{**vars(old), "sources": digest_of(toy(tmp_path, monkeypatch))})
    write(now, folder)
    monkeypatch.setattr(command, "read", lambda: read(folder))
    monkeypatch.setattr(command, "wrong_pages", lambda results: [])
    monkeypatch.setattr(checking, "FOLDER", folder)
    return now


def test_the_check_passes_if_all_is_equal_and_prints_its_sample(tmp_path, only_the_toy):
    (tmp_path / "log").unlink()
    done = CliRunner().invoke(bench, ["results", "--check", "--sample", "3"])
    assert done.exit_code == 0, done.output
    assert "sample 3 (--sample 3 repeats it): 3 seeds rerun, compared bit for bit" in done.output
    assert "toy, seed 2: equal" in done.output
    assert seeds_run(tmp_path) == ["0", "1", "2"]


def test_the_check_fails_if_a_value_or_a_digest_differs(tmp_path, only_the_toy):
    write(changed(only_the_toy, 2, 7.0), tmp_path / "results")
    done = CliRunner().invoke(bench, ["results", "--check"])
    assert done.exit_code == 1
    assert "toy, seed 2, md | loss: recorded 7.0, now 0.2" in done.output
    write(changed(only_the_toy, 2, 0.2, sources="of old"), tmp_path / "results")
    done = CliRunner().invoke(bench, ["results", "--check"])
    assert done.exit_code == 1
    assert "toy: its sources have changed since it was recorded" in done.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "name one of --write, --check, --renew and --measure"),
        (["--write", "--check"], "name one of"),
        (["--check", "osmd-f1"], "goes with --renew only"),
        (["--renew", "osmd"], "experiment = 'osmd': has no recorded results"),
    ],
)
def test_wrong_arguments_are_refused(arguments, reason):
    done = CliRunner().invoke(bench, ["results", *arguments])
    assert done.exit_code == 2
    assert reason in done.output
