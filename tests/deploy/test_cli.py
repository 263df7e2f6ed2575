"""The `cohort` command: bad input is refused with a message before anything starts."""

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from importlib.metadata import EntryPoint, EntryPoints, entry_points, version
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

import tasks.datasets
from deploy import cli
from deploy.engines.engine import EngineError
from deploy.engines.superlink import RunningSuperLink
from deploy.flower.app_folder import app_folder
from deploy.hosting.server import Server
from deploy.runs import comparison_setup, trials
from deploy.runs.trials import plan, read_plan, write_plan
from server.settings import CHECKPOINTS
from strategies import extensions
from strategies.checkpoint import Checkpoint, CheckpointFolder

from ..support.histories import write_history
from ..support.processes import linux, simulate_here, wait_for


def cohort(*arguments):
    return CliRunner().invoke(cli.cli, arguments)


def refused(*arguments):
    """Return what a command that is refused before it does anything prints."""
    result = cohort(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--per-round 12", "clients-per-round = 12: must be between 1 and 10 (the number of clients)"),
        ("--clients 0", "num-clients = 0: must be"),
        ("--clients 1438", "num-clients = 1438: must be between 1 and 1437 (the number of samples)"),
        (f"--rounds {2**63}", f"num-rounds = {2**63}: must be less than {2**63}"),
        ("--set partition=shards:900", "num-clients = 10: must be between 1 and 1 (900 shard(s) each)"),
        ("--task mnist --set data-dir=nowhere", "/nowhere': there is no such file or folder"),
        (
            "--set partition=groups:3 --selector flics:group-shares=0:.5/1:.5",
            "selector = 'flics': client-00 cannot take part: its group is 2: must be one of '0', '1'",
        ),
        ("--selector naive-group:group-shares=1/1", "client-00 cannot take part: its group is None"),
        ("--selector flics:energy-budgets=2", "budgets need the energies of the clients: declare them in"),
        ("--set budget=4@1/11@9", "budget = 11: must be at most 10, the number of clients"),
        ("--selector forecast(alpha=3)", "must be name or name:setting=value,setting=value"),
        ("--clients-per-round 12 --num-clients 11", "clients-per-round = 12: must be between 1 and 11"),
        ("--selector md:", "selector = 'md:': must be name or name:setting=value,setting=value"),
        ("--selector md --selector md", "selector = 'md': given twice"),
        ("--set learning-rate", "set = 'learning-rate': must be of the form key=value"),
        ("--set no-such=1", "no-such = 1: unknown setting; the settings are selector"),
        ("--set lr=3", "lr = 3: unknown setting (did you mean learning-rate?)"),
        (
            "--set min-shares=2",
            "min-shares = 2: not a setting of the run, but of flics; write it into selector-settings, or "
            "with `cohort up` and `cohort simulate` use --selector flics:min_shares=2",
        ),
        ("--set seed=2", "set = seed=2: use --seed for this setting"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_starts(tmp_path, arguments, message):
    for command in ("up", "simulate"):
        assert message in refused(command, "--out", str(tmp_path / "run"), *arguments.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("engine", "warns"), [("ray", True), ("batched", False)])
def test_a_simulation_that_every_local_user_can_command_says_so(tmp_path, monkeypatch, engine, warns):
    monkeypatch.setattr("deploy.cli.RaySimulation", lambda *_, **__: None)
    monkeypatch.setattr("deploy.cli._compare", lambda *_, **__: None)
    result = cohort("simulate", "--engine", engine, "--out", str(tmp_path / "run"))
    assert result.exit_code == 0
    assert ("every user of this machine can submit runs" in result.stderr) == warns


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--selector flics-private:group-shares=1/1/1 --set partition=groups:3",
            "its clients decide themselves whether they train, which a batched simulation cannot; use",
        ),
        ("--selector personalised-osmd", "selector = 'personalised-osmd': its clients keep models of their"),
        ("--set wire=float16", "wire = 'float16': must be 'float32' in a batched simulation"),
        ("--set over-selection=1.5", "over-selection = 1.5: needs response-times or device-speeds in a"),
        ("--set mode=buffered --set concurrency=4", "mode = 'buffered': needs response-times or"),
        ("--set eligible=tag:eu", "eligible = 'tag:eu': a batched simulation knows names and groups only"),
    ],
)
def test_what_a_batch_cannot_do_is_refused_before_anything_starts(tmp_path, arguments, message):
    options = ("--engine", "batched", "--out", str(tmp_path / "run"))
    assert message in refused("simulate", *options, *arguments.split())
    assert not (tmp_path / "run").exists()


def test_a_port_in_use_is_refused_with_the_option_to_change_it(tmp_path, taken_port):
    assert f"port = {taken_port}: taken by another program; choose another with --port" in refused(
        "up", "--out", str(tmp_path / "run"), "--port", str(taken_port)
    )
    assert not (tmp_path / "run").exists()


def test_a_folder_with_files_is_refused_and_not_changed(tmp_path):
    (tmp_path / "mine").write_text("precious")
    assert f"out = {tmp_path}: must be a new or an empty folder" in refused("up", "--out", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["proc", "file", "long"])
def test_a_folder_that_cannot_be_created_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("")
    out = {"proc": Path("/proc/nope"), "file": tmp_path / "file" / "run", "long": tmp_path / ("x" * 300)}[
        name
    ]
    assert f"out = {out}: cannot be created or written: " in refused("up", "--out", str(out))


@pytest.mark.parametrize("task", ["digits", "digits-mlp"])
def test_a_missing_extra_is_named_before_anything_starts(tmp_path, monkeypatch, task):
    if task == "digits-mlp":
        pytest.importorskip("torch")
    tasks.datasets._load.cache_clear()
    monkeypatch.setattr(tasks.datasets.digits, "find_spec", lambda name: None)
    result = cohort("up", "--out", str(tmp_path / "run"), "--task", task)
    assert result.exit_code == 2
    assert result.stderr == "task = 'digits' needs scikit-learn: pip install 'cohort-app[demo]'\n"
    assert not (tmp_path / "run").exists()


def earlier(folder, *, end=False, rounds=3):
    """Write the files of a `cohort up` that was killed during its second trial."""
    common = {"num-clients": 4, "num-rounds": rounds, "clients-per-round": 2}
    trials = plan(["md", "uniform"], {**common, "task": "digits", "seed": 7}, cli.app_folder(), folder)
    for number, trial in enumerate(trials):
        losses = [2.0] * (rounds + 1) if end or not number else [2.0]
        write_history(folder / trial.name, losses, trial.name, end=end or not number)
    (folder / "logs").mkdir()
    (folder / "logs" / "md.log").write_text("old")
    write_plan(folder, trials)
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--clients 5", "num-clients = 5: the run to be resumed has 4"),
        ("--clients 4 --seed 8", "seed = 8: the run to be resumed has 7"),
        ("--set learning-rate=0.1", "learning-rate = 0.1: the run to be resumed has the default"),
        ("--selector md", "selector = md: the run to be resumed has md, uniform"),
        ("--out elsewhere", "out = elsewhere: a resumed run must stay in its folder"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(tmp_path, arguments, message):
    run = earlier(tmp_path / "run")
    before = sorted(run.rglob("*"))
    assert message in refused("up", "--resume", str(run), *arguments.split())
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("text", [None, "{", "[]", '{"version": 2}', '{"version": 1, "trials": {"md": 3}}'])
def test_a_folder_without_a_run_is_not_resumed(tmp_path, text):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    said = refused("up", "--resume", str(tmp_path))
    assert str(tmp_path) in said
    assert "holds no run.json" in said or "run.json: cannot be used: " in said


def test_the_last_run_is_resumed_in_its_folder_and_finished_trials_stay(tmp_path, monkeypatch):
    trained = []

    def train(cluster, trials, watcher, *, at_once):
        trained.extend(trials)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "LocalCluster", NoCluster)
    monkeypatch.setattr(cli, "train", train)
    assert "there is no run in runs/" in cohort("up", "--resume", "last").stderr
    earlier(tmp_path / "runs" / "2026-01-01_00-00-00", end=True)
    run = earlier(tmp_path / "runs" / "2026-01-02_00-00-00")
    (run / "state").mkdir()  # left after a power failure
    result = cohort("up", "--resume", "last", "--clients", "4", "--rounds", "5", "--quiet")
    assert result.exit_code == 1, result.output  # `train` did nothing
    assert [(trial.name, trial.done, trial.run_config["num-rounds"]) for trial in trained] == [
        ("md", False, 5),
        ("uniform", False, 5),
    ]
    assert all(trial.run_config["output-dir"] == str(run / trial.name) for trial in trained)
    assert not (run / "state").exists()
    assert (run / "logs-1" / "md.log").read_text() == "old"
    assert list((run / "logs").iterdir()) == []

    trained.clear()
    cohort("up", "--resume", str(run), "--quiet")  # the number of rounds given before is remembered
    assert [trial.run_config["num-rounds"] for trial in trained] == [5, 5]


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "train", None)
    monkeypatch.setattr(cli, "LocalCluster", NoCluster)
    run = earlier(tmp_path / "run", end=True)
    result = cohort("up", "--resume", str(run))
    assert result.exit_code == 0, result.output
    assert "there is nothing left to train" in result.stdout


@pytest.mark.slow
def test_cohort_server_run_resumes_with_the_settings_of_the_run(tmp_path, monkeypatch):
    submitted = []

    def submit(self, config, name):
        submitted.append(config)
        raise EngineError("Flower refused the run: no")

    monkeypatch.setattr(RunningSuperLink, "submit", submit)
    server = Server(tmp_path / "server", ("localhost",), control_port=1)
    server.save()
    here = ("--dir", str(server.folder))
    assert "run = last: there is no run in" in refused("server", "run", "--resume", "last", *here)
    write_history(server.folder / "runs" / "1", [2.0])
    run = server.folder / "runs" / "2"
    write_history(run, [2.0, 1.0], "md", end=False)

    assert "selector = 'uniform': the run to be resumed has 'md'" in refused(
        "server", "run", "--resume", "last", "--set", "selector=uniform", *here
    )
    assert f"resume = {tmp_path}: holds no history.jsonl with the settings of a run" in refused(
        "server", "run", "--resume", str(tmp_path), *here
    )
    assert submitted == []

    said = refused("server", "run", "--set", "num-rounds=0", "--set", "tusk=digits", *here)
    assert "num-rounds = 0: must be" in said
    assert "tusk = 'digits': unknown setting" in said
    up = f"cohort server up --dir {server.folder}"
    said = cohort("server", "run", *here).stderr
    assert f"nothing answers on port 1 of this machine; is `{up}` running?" in said
    for key, why in (("output-dir", "the folder is made in runs/"), ("resume", "use --resume")):
        assert f"set = {key}=x: {why}" in refused("server", "run", "--set", f"{key}=x", *here)
    assert sorted(path.name for path in (server.folder / "runs").iterdir()) == ["1", "2"]
    assert submitted == []
    monkeypatch.setattr(Server, "check_is_up", lambda self: None)
    with (run / "history.jsonl").open("ab") as history:
        history.write(b"\x00damaged\n")  # costs this line, not the resume

    result = cohort("server", "run", "--resume", "last", "--set", "num-rounds=5", *here)
    assert submitted == [
        {
            "selector": "md",
            "selector-settings": "",
            "num-rounds": 5,
            "removed-clients": str(server.revoked_file),
            "output-dir": str(run),
            "resume": True,
        }
    ]
    assert result.exit_code == 2
    assert "Flower refused the run: no" in result.stderr

    class Failed:
        over, last_words, stopped = True, "the SuperLink does not know the run", False
        run_id = "17"

        def close(self):
            pass

    monkeypatch.setattr(RunningSuperLink, "submit", lambda *_: Failed())
    result = cohort("server", "run", "--resume", "last", *here)
    assert result.exit_code == 1
    assert "2 failed: ended unexpectedly; the SuperLink does not know the run" in result.stdout
    assert result.stderr == "there is no checkpoint, so there is nothing to resume; start a new run\n"
    assert " md " in result.stdout  # the table of results
    save_checkpoint(run, 1)
    result = cohort("server", "run", "--resume", "last", *here)
    assert result.stderr == "no round is left, so there is nothing to resume; start a new run\n"
    result = cohort("server", "run", "--resume", "last", "--set", "num-rounds=5", *here)
    assert result.stderr == f"to resume: cohort server run --resume {run} --dir {server.folder}\n"
    assert (run / "flower-run").read_text() == "17"

    def end_unchanged(*_):
        reason = "UnchangedModelError: no round changed the model: all 1 were skipped"
        with (run / "history.jsonl").open("a") as history:
            history.write(json.dumps({"type": "error", "rounds": 1, "reason": reason}) + "\n")
        return Failed()

    monkeypatch.setattr(RunningSuperLink, "submit", end_unchanged)
    result = cohort("server", "run", "--resume", "last", "--set", "num-rounds=5", *here)
    assert result.stderr == "no round changed the model, so there is nothing to resume; start a new run\n"

    class Interrupted(Failed):
        @property
        def over(self):
            raise KeyboardInterrupt

    def follow(self, config, name):
        self.runs.append(run := Interrupted())
        return run

    monkeypatch.setattr(RunningSuperLink, "submit", follow)
    result = cohort("server", "run", "--resume", "last", *here)
    assert result.exit_code == 130
    assert f"the run goes on without this command; history: {run / 'history.jsonl'}" in result.stderr
    assert f"to stop the run: cohort server stop 17 --dir {server.folder}" in result.stderr


class Frozen(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5)


@pytest.mark.slow
def test_two_runs_of_a_server_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    folders = []

    def submit(self, config, name):
        folders.append(config["output-dir"])
        if len(folders) == 1:
            Path(config["output-dir"], "history.jsonl").touch()
        raise EngineError("Flower refused the run: no")

    monkeypatch.setattr(RunningSuperLink, "submit", submit)
    monkeypatch.setattr(Server, "check_is_up", lambda self: None)
    monkeypatch.setattr(Server, "bundle", lambda self: 64 * "0")
    monkeypatch.setattr(trials, "datetime", Frozen)
    server = Server(tmp_path / "server", ("localhost",), control_port=1)
    server.save()
    for _ in range(2):
        result = cohort("server", "run", "--dir", str(server.folder))
        assert result.stderr == "Flower refused the run: no\n"
    runs = server.folder / "runs"
    assert folders == [str(runs / "2026-01-02_03-04-05"), str(runs / "2026-01-02_03-04-05-02")]
    assert [each.name for each in runs.iterdir()] == ["2026-01-02_03-04-05"]  # the second holds nothing


def test_two_comparisons_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trials, "datetime", Frozen)
    monkeypatch.setattr(cli, "LocalCluster", NoCluster)
    monkeypatch.setattr(cli, "_compare", lambda *_, **__: None)
    assert cohort("up", "--rounds", "0").exit_code == 2
    assert list(tmp_path.iterdir()) == []
    for command in ("up", "simulate"):
        result = cohort(command)
        assert result.exit_code == 0, result.output
    plans = sorted(tmp_path.glob("runs/*/run.json"))
    assert [each.parent.name for each in plans] == ["2026-01-02_03-04-05", "2026-01-02_03-04-05-02"]
    assert read_plan(plans[1].parent)[0].run_config["output-dir"] == str(plans[1].parent / "forecast")


def save_checkpoint(run, number):
    folder = CheckpointFolder(run / CHECKPOINTS)
    assert folder.save(Checkpoint(number, {}, {}))
    folder.release()


def test_a_comparison_says_how_to_resume_it_only_if_that_helps(tmp_path, monkeypatch):
    class Dies(NoCluster):
        def __enter__(self):
            raise EngineError("the SuperLink ended")

    monkeypatch.setattr(cli, "LocalCluster", Dies)
    monkeypatch.chdir(tmp_path)
    result = cohort("up", "--out", "run", "--selector", "md", "--rounds", "4")
    assert (result.exit_code, result.stderr) == (1, "the SuperLink ended\n")
    write_history(tmp_path / "run" / "md", [2.0, 1.0], "md", end=False)
    save_checkpoint(tmp_path / "run" / "md", 1)
    module = tmp_path / "with blank.py"
    module.write_text("")
    monkeypatch.setenv(extensions.VARIABLE, "")
    result = cohort("up", "--resume", "run", "--import", str(module))
    assert result.stderr == (
        f"the SuperLink ended\nto resume: cohort up --resume run --import '{tmp_path}/with blank.py'\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_comparison_with_keys_in_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "LocalCluster", NoCluster)
    monkeypatch.setattr(cli, "_compare", lambda *_, **__: None)
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, 54321, 54321)
    result = cohort("up", "--out", str(run))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"out = {run}: belongs to 54321, who could replace the keys in it: ")
    assert list(run.iterdir()) == []
    assert cohort("simulate", "--out", str(run)).exit_code == 0  # has no keys


class NoCluster:
    """Stands in for LocalCluster, without processes."""

    started = ""

    def __init__(self, folder, *_, **__):
        self.folder = folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_run_without_training_fails_with_its_reason_and_lists_no_models(tmp_path, monkeypatch):
    def train(cluster, trials, watcher, *, at_once):
        for trial in trials:
            folder = cluster.folder / trial.name
            write_history(folder, [2.0], end=False, error="RuntimeError: nobody answered")
            trial.history.read()
            watcher.event(f"{trial.name} failed: {trial.problem}")

    monkeypatch.setattr(cli, "LocalCluster", NoCluster)
    monkeypatch.setattr(cli, "train", train)
    result = cohort("up", "--out", str(tmp_path / "run"), "--quiet")
    assert result.exit_code == 1
    assert "uniform failed: RuntimeError: nobody answered" in result.stdout
    assert "model.safetensors" not in result.stdout
    assert "figure     none: nothing to draw" in result.stdout
    assert f"histories  {tmp_path}/run/*/history.jsonl" in result.stdout


def test_plot_draws_the_trials_in_the_order_of_their_start(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(cli, "draw", lambda trials, path: drawn.extend(trial.label for trial in trials))
    names = ["uniform", "md", "adaptive-osmd", "delta"]  # as given; not sorted
    for name, millisecond in zip(names, (7, 40, 123, 999), strict=True):
        started = f"2026-01-01T00:00:00.{millisecond:03d}+00:00"
        write_history(tmp_path / name, [2.0, 1.0], name, started=started)
    assert cohort("plot", str(tmp_path)).exit_code == 0
    assert drawn == names


def test_each_trial_has_its_settings_and_its_folder(tmp_path):
    trials = plan(
        ["md", "adaptive-osmd:alpha=0.4,learning-rate-multiplier=100"],
        {"seed": 7},
        cli.app_folder(),
        tmp_path,
    )
    assert [trial.run_config for trial in trials] == [
        {"seed": 7, "selector": "md", "selector-settings": "", "output-dir": str(tmp_path / "md")},
        {
            "seed": 7,
            "selector": "adaptive-osmd",
            "selector-settings": "alpha=0.4 learning-rate-multiplier=100",
            "output-dir": str(tmp_path / "adaptive-osmd-alpha-0.4-learning-rate-multiplier-100"),
        },
    ]


def test_plot_needs_only_the_histories(tmp_path):
    write_history(tmp_path / "run" / "uniform", [2.0, 1.5, 1.0])
    write_history(tmp_path / "run" / "md", [2.0, 1.2, 0.9], "md")
    run = shutil.move(tmp_path / "run", tmp_path / "elsewhere")  # nothing in it depends on the place
    result = cohort("plot", str(run))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "elsewhere" / "cohort.png").read_bytes().startswith(b"\x89PNG")
    assert "uniform" in result.stdout
    assert str(tmp_path / "elsewhere" / "cohort.png") in result.stdout


def test_plot_and_advise_take_the_folder_of_one_run(tmp_path):
    """`cohort server run` prints this folder."""
    run = tmp_path / "runs" / "2026-01-01"
    write_history(run, [2.0, 1.0, 0.5], "md")
    result = cohort("plot", str(run))
    assert result.exit_code == 0, result.output
    assert (run / "cohort.png").read_bytes().startswith(b"\x89PNG")
    assert f"history    {run / 'history.jsonl'}" in result.stdout
    assert not list(tmp_path.glob("runs/cohort.png"))
    assert "holds no history" not in cohort("advise", str(run)).stderr


def test_last_is_the_newest_comparison(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("plot", "advise", "page"):
        result = cohort(command, "last")
        assert (result.exit_code, result.stderr) == (
            2,
            "run = last: there is no run in runs/; give the run's folder\n",
        )
    for day in ("2026-01-01", "2026-01-02"):
        (trial,) = plan(["md"], {"num-rounds": 2}, app_folder(), tmp_path / "runs" / day)
        write_history(trial.folder, [2.0, 1.0, 0.5], "md")
        write_plan(tmp_path / "runs" / day, [trial])
    assert "runs/2026-01-02/cohort.png" in cohort("plot", "last").stdout


@linux
def test_a_signal_ends_a_run_with_a_word_and_the_command_to_resume(tmp_path):
    arguments = ["simulate", "--engine", "batched", "--num-rounds", "100000", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-c", "from deploy.command import main; main()", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        saved = tmp_path / "run" / "forecast" / CHECKPOINTS
        wait_for(lambda: any(saved.glob("round-*.npz")), 60, lambda: "no checkpoint")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert said.endswith(f"stopped by SIGTERM\nto resume: cohort simulate --resume {tmp_path / 'run'}\n")
    assert process.returncode == 128 + signal.SIGTERM


def test_a_resume_says_that_it_waits_for_the_processes_of_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(comparison_setup, "processes_with", lambda *_: [1])
    monkeypatch.setattr(comparison_setup, "RECLAIM_TIMEOUT", 0.01)
    with pytest.raises(ValueError, match="this run is still going on; stop it first"):
        comparison_setup._reclaim(tmp_path)
    assert capsys.readouterr().err == f"resume = {tmp_path}: waiting up to 0.01 s for its processes\n"


def test_plot_refuses_a_folder_without_histories(tmp_path):
    assert f"{tmp_path}: holds no history" in refused("plot", str(tmp_path))


def test_commands_of_other_packages_are_found_and_a_broken_one_fails_alone(monkeypatch):
    extra = typer.Typer()

    @extra.command(help="From another package.")
    def hello():
        typer.echo("hello")

    monkeypatch.setattr(sys.modules[__name__], "EXTRA", extra, raising=False)
    registered = EntryPoints(
        EntryPoint(name, f"{__name__}:{value}", cli.COMMANDS)
        for name, value in (("hi", "EXTRA"), ("broken", "NO_SUCH_COMMAND"))
    )
    monkeypatch.setattr(cli, "entry_points", lambda **names: registered.select(**names))
    assert cohort("hi").stdout == "hello\n"
    listed = cohort("--help")
    assert listed.exit_code == 0
    assert "From another package." in listed.stdout
    for arguments in ([], ["--help"], ["some", "--option", "1"]):
        result = cohort("broken", *arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("broken: cannot be loaded: ")
        assert result.stderr.count("\n") == 1
    assert cohort("nope").exit_code == 2


def test_bench_is_registered():
    assert "bench" in entry_points(group=cli.COMMANDS).names


def test_version():
    assert cohort("--version").stdout == f"cohort {version('cohort-app')} (Flower {version('flwr')})\n"


@pytest.mark.parametrize("command", ["up", "simulate"])
def test_an_option_that_is_given_twice_is_refused(command, tmp_path):
    """`--seed 1 --seed 2` trained with seed 2 only."""
    assert "--seed is given more than once" in refused(
        command, "--seed", "1", "--seed", "2", "--out", str(tmp_path / "run")
    )
    assert not (tmp_path / "run").exists()
    # --selector and --set may be repeated.
    repeated = ("--selector", "md", "--selector", "uniform", "--set", "guard=false", "--set", "task=digits")
    assert "more than once" not in cohort(command, *repeated, "--rounds", "0").stderr


def test_one_number_for_seeds_is_refused():
    """`--seeds 0` trained with seed 0, and `--seeds 5` with seed 5 only."""
    for seeds in ("0", "5"):
        assert (
            refused("up", "--seeds", seeds)
            == f"seeds = '{seeds}': must be like 1-5 or 1,3,7-9; for one seed use --seed\n"
        )


def commands_with_options(command, path="cohort"):
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands_with_options(command.get_command(context, name), f"{path} {name}")
    else:
        yield from ((path, each) for each in command.params if isinstance(each, click.Option))


def test_no_option_takes_nan_or_infinity():
    """`cohort client join` refuses them in `deploy.device.state.Settings`."""
    floats = [
        (path, option)
        for path, option in commands_with_options(typer.main.get_command(cli.cli))
        if option.type.name.startswith("float") and path != "cohort client join"
    ]
    assert len(floats) >= 9
    for path, option in floats:
        for value in ("nan", "inf"):
            with pytest.raises(click.BadParameter) as error:
                option.type.convert(value, option, None)
            assert value in error.value.message, (path, option)


@pytest.mark.slow
def test_seeds_repeat_the_comparison_and_are_resumed(tmp_path, monkeypatch):
    simulate_here(monkeypatch)
    run = tmp_path / "run"
    common = ("simulate", "--engine", "batched", "--clients", "4", "--per-round", "2")
    selectors = ("--selector", "uniform", "--selector", "md")
    result = cohort(*common, *selectors, "--rounds", "2", "--seeds", "1-2", "--out", str(run))
    assert result.exit_code == 0, result.output
    assert "· 2 seeds" in result.stdout
    assert result.stdout.index("uniform-seed-1  round 2/2") < result.stdout.index("uniform-seed-2  round 1/2")
    names = [f"{name}-seed-{seed}" for seed in (1, 2) for name in ("uniform", "md")]
    seeds = [read_settings(run / name)["seed"] for name in names]
    assert seeds == [1, 1, 2, 2]
    assert "±" in result.stdout
    result = cohort(*common[:3], "--resume", str(run), *selectors, "--rounds", "3")
    assert result.exit_code == 0, result.output
    assert "md-seed-2  round 3/3" in result.stdout
    for more in (("--seeds", "1-3"), ("--seed", "2")):
        assert cohort(*common[:3], "--resume", str(run), *more).exit_code == 2
    assert "seeds = '1-2': cannot be combined with --seed" in refused(
        *common, "--seeds", "1-2", "--seed", "1"
    )
    assert "seeds = '2-1': must be like 1-5" in cohort(*common, "--seeds", "2-1").stderr


def read_settings(folder):
    return json.loads((folder / "history.jsonl").read_text().splitlines()[0])


def test_a_resume_takes_the_settings_of_the_run_again(tmp_path, monkeypatch):
    """A path was compared with the absolute one, and a wrong num-rounds made the folder useless."""
    simulate_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.json").write_text('{"partition-0": 5}')
    size = ["--clients", "3", "--per-round", "2", "--rounds", "1", "--selector", "md", "--quiet"]
    settings = ["--set", "client-sizes=sizes.json"]
    assert cohort("simulate", *size, *settings, "--out", "run").exit_code == 0
    assert "set = num-rounds=4.5: use --rounds for this setting" in refused(
        "simulate", "--resume", "run", "--set", "num-rounds=4.5"
    )
    again = cohort("simulate", "--resume", "run", *settings, "--rounds", "2", "--quiet")
    assert again.exit_code == 0, again.stderr


def test_a_simulation_is_resumed_with_its_engine(tmp_path, monkeypatch):
    simulate_here(monkeypatch)
    run = tmp_path / "run"
    size = ["--clients", "3", "--per-round", "2", "--rounds", "1", "--selector", "md", "--quiet"]
    assert cohort("simulate", "--engine", "batched", *size, "--out", str(run)).exit_code == 0
    for other in (["up"], ["simulate", "--engine", "ray"]):
        assert f"has batched; resume it with cohort simulate --resume {run}" in refused(
            *other, "--resume", str(run), "--rounds", "2"
        )
    result = cohort("simulate", "--resume", str(run), "--rounds", "2")
    assert result.exit_code == 0, result.stderr
    assert "md  round 2/2" in result.stdout
