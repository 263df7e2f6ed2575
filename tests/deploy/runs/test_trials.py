"""The plan of a run, from which its trials are resumed."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.runs.trials import LARGEST_PLAN, Trial, new_run_folder, read_plan, with_absolute_paths, write_plan
from server.history import RunHistory

CONFIG = {
    "selector": "md",
    "selector-settings": "",
    "task": "digits",
    "num-clients": 4,
    "clients-per-round": 2,
    "num-rounds": 3,
    "seed": 0,
}


def test_a_plan_can_be_read_after_its_folder_was_moved(tmp_path):
    (tmp_path / "run").mkdir()
    planned = [Trial(name, {}, RunHistory(Path())) for name in "ba"]
    for seed, trial in enumerate(planned):
        trial.run_config |= {"selector": "md", "num-rounds": 9, "seed": seed}
        trial.run_config["output-dir"] = str(tmp_path / "run" / trial.name)
    write_plan(tmp_path / "run", planned)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert [(trial.name, trial.run_config, trial.history.path) for trial in read_plan(moved)] == [
        (
            name,
            {"selector": "md", "num-rounds": 9, "seed": seed, "output-dir": str(moved / name)},
            moved / name / "history.jsonl",
        )
        for seed, name in enumerate("ba")
    ]


def test_runs_that_start_together_have_folders_of_their_own_in_the_order_of_their_starts(tmp_path):
    parent = tmp_path / "runs"

    def make():
        with new_run_folder(parent) as folder:
            (folder / "run.json").touch()
        return folder

    with ThreadPoolExecutor(16) as several:
        made = {each.result() for each in [several.submit(make) for _ in range(32)]}
    assert len(made) == 32
    one_after_another = [make() for _ in range(12)]
    assert one_after_another == sorted(one_after_another)


def test_the_folder_of_a_run_that_did_not_start_is_removed_unless_it_holds_files(tmp_path):
    with pytest.raises(OSError, match="first"), new_run_folder(tmp_path / "new" / "runs"):
        raise OSError("first")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "runs").mkdir()
    with pytest.raises(OSError, match="second"), new_run_folder(tmp_path / "runs") as folder:
        raise OSError("second")
    assert list((tmp_path / "runs").iterdir()) == []
    with suppress(OSError), new_run_folder(tmp_path / "runs") as folder:
        (folder / "history.jsonl").touch()
        raise OSError("third")
    assert (folder / "history.jsonl").exists()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), new_run_folder(tmp_path / "file"):
        pass


def test_paths_hold_in_the_folders_of_the_apps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"client-settings": "mine.json", "client-sizes": "", "data-dir": "/data", "task": "digits"}
    assert with_absolute_paths(given) == {**given, "client-settings": str(tmp_path / "mine.json")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "too many levels"),
        ("[]", "must have trials with settings"),
        ('{"version": 1}', "'trials' is missing"),
        ('{"version": 1, "trials": {}}', "must have at least one trial"),
        ('{"version": 1, "trials": []}', "must have trials with settings"),
        ('{"version": 1, "trials": {"md": 3}}', "must have trials with settings"),
        ('{"version": 1, "trials": {"md": {"selector": "md"}}}', "'num-rounds' is missing"),
        ('{"version": 1, "trials": {"md": {"selector": [], "num-rounds": 9}}}', "settings must be numbers"),
        ('{"version": 1, "trials": {"../../md": {"num-rounds": 9}}}', "must be the name of a folder"),
        ('{"version": 1, "trials": {"..": {"num-rounds": 9}}}', "must be the name of a folder"),
        ('{"note": "' + "x" * LARGEST_PLAN + '"}', "is larger than 16 MiB"),
    ],
)
def test_a_damaged_or_foreign_plan_is_refused_with_its_name(tmp_path, text, message):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=rf"run\.json: cannot be used: .*({message})") as refused:
        read_plan(tmp_path)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "key", ["selector", "task", "num-clients", "clients-per-round", "num-rounds", "seed"]
)
def test_a_plan_whose_trial_lacks_a_setting_is_refused_in_one_line(tmp_path, key):
    lacking = {name: value for name, value in CONFIG.items() if name != key}
    write_plan(tmp_path, [Trial("md", lacking, RunHistory(tmp_path / "history.jsonl"))], "cluster")
    result = CliRunner().invoke(cli, ["up", "--resume", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / 'run.json'}: cannot be used: ")
    assert key in result.stderr
    assert "missing" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("num-rounds", "9", "num-rounds = '9': "), ("num-clients", 0, "num-clients = 0: "), ("sed", 1, "sed")],
)
def test_a_plan_whose_trial_has_a_wrong_setting_is_refused_in_one_line(tmp_path, key, value, message):
    trial = Trial("md", {**CONFIG, key: value}, RunHistory(tmp_path / "history.jsonl"))
    write_plan(tmp_path, [trial], "cluster")
    result = CliRunner().invoke(cli, ["up", "--resume", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / 'run.json'}: cannot be used: trial = 'md': {message}")
    assert result.stderr.count("\n") == 1
