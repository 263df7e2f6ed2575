"""`cohort simulate` writes the same history as the apps."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.engines import batched
from deploy.processes.groups import wait_until
from deploy.runs.display import metrics
from deploy.runs.figure import draw
from deploy.runs.trial_statistics import summarise
from server.history import RunHistory, read_lines
from strategies.checkpoint import CheckpointFolder

from ...server.test_apps import federation
from ...support.histories import check_same_rounds
from ...support.processes import simulate_here

SETTINGS = {"num-clients": 8, "num-rounds": 6, "seed": 5, "clients-per-round": 3}


def rounds_of(folder):
    return [line for line in read_lines(folder / "history.jsonl") if line["type"] == "round"]


# What the papers combine their selectors with.
COMBINATIONS = {
    "plain": {},
    "FLICS-ADAM": {
        "selector": "flics",
        "partition": "groups:3",
        "server-strategy": "FedAdam:eta=0.05,tau=0.01",
        "learning-rate": 0.1,
    },
    "DELTA with momentum and a proximal term": {
        "selector": "prac-delta",
        "server-strategy": "FedAvgM:server-momentum=0.5",
        "proximal-mu": 0.1,
        "learning-rate": 0.1,
    },
    "DELTA-VARP": {"selector": "prac-delta", "variates": "fedvarp", "learning-rate": 0.1},
    "OSMD with SCAFFOLD, whose rate falls": {
        "selector": "adaptive-osmd",
        "variates": "scaffold",
        "learning-rate": "0.2@1/0.05@4",
    },
    "masked updates, Adagrad": {
        "selector": "md",
        "masked-updates": True,
        "server-strategy": "FedAdagrad:eta=0.05",
    },
    "groups that evaluate": {"selector": "flics", "partition": "groups:3", "evaluate-share": 0.75},
    "full information: delta": {"selector": "delta", "learning-rate": "0.2@1/0.1@3"},
    "full information: optimal": {"selector": "optimal", "variates": "scaffold", "learning-rate": 0.2},
    "full information: fed-is": {"selector": "fed-is", "masked-updates": True},
    "median": {"selector": "uniform", "server-strategy": "FedMedian", "learning-rate": "0.5@0/0.1@3"},
}


@pytest.mark.parametrize("settings", COMBINATIONS.values(), ids=COMBINATIONS)
def test_its_history_equals_that_of_the_apps(tmp_path, settings):
    federation(tmp_path / "apps", 8, num_rounds=6, seed=5, **settings)
    batched.run({**SETTINGS, **settings, "output-dir": str(tmp_path / "batched")})
    ours, theirs = rounds_of(tmp_path / "batched"), rounds_of(tmp_path / "apps")
    assert [line["round"] for line in ours] == list(range(7))
    check_same_rounds(ours, theirs)
    for line in ours:
        assert bool(line.get("group_metrics")) == (line["round"] > 0 and "evaluate-share" in settings)
    kinds = [
        [line["type"] for line in read_lines(tmp_path / name / "history.jsonl")]
        for name in ("apps", "batched")
    ]
    assert kinds[0] == kinds[1]
    assert (tmp_path / "batched" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("selector", "declared"),
    [
        ("lipschitz-is", {"lipschitz": {"client-00": 9.0, "client-03": 1.0}}),
        ("flics", {"groups": {"client-00": "north", "client-01": "north", "client-02": "south"}}),
    ],
)
def test_the_settings_per_client_of_a_file_are_those_of_the_apps(tmp_path, selector, declared):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(declared))
    settings = {"selector": selector, "client-settings": str(file), "partition": "groups:3"}
    federation(tmp_path / "apps", 8, num_rounds=4, seed=5, **settings)
    batched.run({**SETTINGS, **settings, "num-rounds": 4, "output-dir": str(tmp_path / "batched")})
    for one, other in zip(rounds_of(tmp_path / "batched"), rounds_of(tmp_path / "apps"), strict=True):
        assert one.get("clients") == other.get("clients")
        np.testing.assert_allclose(one.get("probabilities", 0), other.get("probabilities", 0), rtol=1e-9)


def test_it_resumes_from_its_last_checkpoint(tmp_path):
    part = tmp_path / "part"
    batched.run({**SETTINGS, "selector": "md", "num-rounds": 2, "output-dir": str(part)})
    with pytest.raises(ValueError, match="selector = 'forecast': the run to be resumed has 'md'"):
        batched.run({**SETTINGS, "output-dir": str(part), "resume": True})
    batched.run({**SETTINGS, "selector": "md", "num-rounds": 5, "output-dir": str(part), "resume": True})
    batched.run({**SETTINGS, "selector": "md", "num-rounds": 5, "output-dir": str(tmp_path / "md")})
    ours, theirs = rounds_of(part), rounds_of(tmp_path / "md")
    for line in (*ours, *theirs):
        line.pop("seconds", None)
    assert ours == theirs


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel to tell of a parent's death")
def test_it_ends_with_the_command_that_started_it(tmp_path):
    command = ["simulate", "--engine", "batched", "--rounds", "1000000", "--selector", "md", "--out"]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("cohort"), *command, str(tmp_path / "run")], stdout=subprocess.DEVNULL
    )
    checkpoints = CheckpointFolder(tmp_path / "run" / "md" / "checkpoints")
    try:
        assert wait_until(checkpoints.is_claimed, 120)
    finally:
        process.kill()
        process.wait()
    assert wait_until(lambda: not checkpoints.is_claimed(), 30)


def test_buffered_rounds_are_simulated_and_resumed(tmp_path):
    settings = {
        **SETTINGS,
        **{"mode": "buffered", "concurrency": 4, "buffer-size": 2, "response-times": "median=10,sigma=1"},
    }
    batched.run({**settings, "output-dir": str(tmp_path / "whole")})
    for rounds, resume in ((3, False), (6, True)):
        batched.run(
            {**settings, "num-rounds": rounds, "resume": resume, "output-dir": str(tmp_path / "parts")}
        )
    whole, parts = rounds_of(tmp_path / "whole"), rounds_of(tmp_path / "parts")
    assert max(tau for line in whole[1:] for tau in line["staleness"]) >= 1
    assert [line.get("clients") for line in whole] == [line.get("clients") for line in parts]
    assert [line.get("weights") for line in whole] == [line.get("weights") for line in parts]


@pytest.mark.slow
def test_a_stopped_run_tells_its_trackers(tmp_path):
    """The history ends as after a kill, so that the run can be resumed."""
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    settings = {**SETTINGS, "num-rounds": 100000, "output-dir": str(tmp_path), "track": "tensorboard"}
    command = [sys.executable, "-m", "deploy.engines.batched", json.dumps(settings), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert wait_until(lambda: len(list(tmp_path.glob("tensorboard/*"))) > 0, 60)
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in output
    (events,) = tmp_path.glob("tensorboard/*tfevents*")
    assert b"stopped after round" in events.read_bytes()
    assert {line["type"] for line in read_lines(tmp_path / "history.jsonl")} <= {"run", "roster", "round"}


def test_a_wrong_number_of_workers_is_refused(tmp_path):
    for arguments, message in (
        (["--engine", "batched", "--workers", "0"], "workers = 0: must be at least 1\n"),
        (["--engine", "ray", "--workers", "2"], "workers = 2: must be 1 with --engine ray\n"),
    ):
        result = CliRunner().invoke(cli, ["simulate", *arguments, "--out", str(tmp_path / "run")])
        assert (result.exit_code, result.stderr) == (2, message)
    assert not (tmp_path / "run").exists()


def test_the_command(tmp_path):
    out = tmp_path / "run"
    arguments = ["simulate", "--engine", "batched", "--clients", "8", "--rounds", "12", "--workers", "2"]
    result = CliRunner().invoke(
        cli, [*arguments, "--out", str(out), "--selector", "uniform", "--selector", "md"]
    )
    assert result.exit_code == 0, result.output
    assert "simulating 8 clients; the selected clients of a round train as one batch" in result.output
    assert {path.name for path in out.iterdir()} >= {"uniform", "md", "cohort.png", "logs"}
    assert len(rounds_of(out / "md")) == 13
    again = CliRunner().invoke(cli, ["simulate", "--engine", "batched", "--resume", str(out)])
    assert again.exit_code == 0
    assert "there is nothing left to train" in again.output


def test_a_simulation_in_which_nobody_replies_in_time_has_failed(tmp_path, monkeypatch):
    simulate_here(monkeypatch)
    command = ["simulate", "--engine", "batched"]
    late = ["--set", "response-times=median=10,sigma=0,jitter=0", "--set", "round-deadline=5"]
    size = ["--clients", "4", "--per-round", "2", "--rounds", "3", "--selector", "md"]
    result = CliRunner().invoke(cli, [*command, *size, *late, "--out", str(tmp_path / "run")])
    reason = (
        "UnchangedModelError: no round changed the model: all {} were skipped. The commonest reason, in {}: "
        "no reply by the deadline"
    )
    assert result.exit_code == 1
    assert f"md failed: {reason.format(3, 3)}" in " ".join(result.output.split())
    again = CliRunner().invoke(cli, [*command, "--resume", str(tmp_path / "run"), "--rounds", "4"])
    assert again.exit_code == 1
    assert f"md failed: {reason.format(4, 4)}" in " ".join(again.output.split())


# Clients that come and go.


def test_clients_follow_a_recorded_trace(tmp_path):
    """Device 0 is there in the first hour, device 1 in the second, devices 2 to 7 in the third."""
    hours = {m: min(m, 2) for m in range(8)}
    devices = {
        str(m): {"active": [3600 * hour], "inactive": [3600 * hour + 600], "finish_time": 10800}
        for m, hour in hours.items()
    }
    (tmp_path / "behaviour.json").write_text(json.dumps(devices))
    trace = {"availability": "trace:assign=same,bin-length=3600"}
    trace["availability-trace"] = str(tmp_path / "behaviour.json")
    batched.run({**SETTINGS, "selector": "md", **trace, "output-dir": str(tmp_path)})
    rounds = rounds_of(tmp_path)[1:]
    assert [line["num_available"] for line in rounds] == [1, 1, 6, 1, 1, 6]
    for line in rounds:
        assert {hours[client] for client in line["clients"]} == {(line["round"] - 1) % 3}


def test_clients_come_and_go_by_a_random_process(tmp_path):
    for name, text in (("often", "poisson:rates=0.9"), ("seldom", "markov:rates=0.2,memory=0.5")):
        batched.run({**SETTINGS, "availability": text, "output-dir": str(tmp_path / name)})
    often, seldom = (
        sum(line["num_available"] for line in rounds_of(tmp_path / name)[1:]) for name in ("often", "seldom")
    )
    assert 8 * 6 > often > 30 > 20 > seldom


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("availability=poisson:rates", "its settings = 'rates': 'rates' must be of the form name=value"),
        ("availability=markov:file=x", "file: is not a setting of 'markov'; valid are"),
        ("availability=trace", "availability-trace = '': must name the recorded trace"),
        ("availability-trace=missing.csv", "missing.csv': cannot be read: No such file or directory"),
    ],
)
def test_an_impossible_availability_is_refused(tmp_path, settings, message):
    arguments = ["--out", str(tmp_path / "run"), "--set", settings]
    result = CliRunner().invoke(cli, ["simulate", "--engine", "batched", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    result = CliRunner().invoke(cli, ["up", *arguments])
    assert result.exit_code == 2
    assert "needs simulate --engine batched; with other engines, clients" in result.stderr
    assert not (tmp_path / "run").exists()


def test_the_seconds_of_a_round_are_those_of_its_computation(tmp_path):
    """They were 0."""
    began = time.monotonic()
    batched.run({**SETTINGS, "num-rounds": 3, "output-dir": str(tmp_path / "md")})
    seconds = [line["seconds"] for line in rounds_of(tmp_path / "md") if line["round"]]
    assert all(each > 0 for each in seconds)
    assert sum(seconds) < time.monotonic() - began


def test_the_model_is_evaluated_every_few_rounds_and_in_the_last(tmp_path):
    """Both engines: the rounds that are evaluated have the numbers of a run that evaluates every round."""
    every = {"num_rounds": 7, "seed": 5, "selector": "md"}
    federation(tmp_path / "apps", 8, **every, evaluate_every=3)
    settings = {**SETTINGS, "num-rounds": 7, "selector": "md"}
    batched.run({**settings, "output-dir": str(tmp_path / "batched"), "evaluate-every": 3})
    batched.run({**settings, "output-dir": str(tmp_path / "all")})
    whole = {line["round"]: line for line in rounds_of(tmp_path / "all")}
    for name in ("apps", "batched"):
        lines = rounds_of(tmp_path / name)
        assert [line["round"] for line in lines] == list(range(8))
        evaluated = [line for line in lines if "test_loss" in line]
        assert [line["round"] for line in evaluated] == [0, 3, 6, 7]
        for line in evaluated:
            assert line["test_loss"] == pytest.approx(whole[line["round"]]["test_loss"], rel=1e-4)
    history = RunHistory(tmp_path / "batched" / "history.jsonl")
    history.read()
    mean = sum(whole[number]["test_loss"] for number in (3, 6, 7)) / 3
    assert summarise(history).test_loss == pytest.approx(mean)
    draw([history], tmp_path / "figure.png")
    assert "test loss –" in metrics(rounds_of(tmp_path / "batched")[1]).plain


def test_clients_evaluate_in_every_round_or_not_at_all(tmp_path):
    with pytest.raises(ValueError, match=r"evaluate-every = 2: must be 1 with evaluate-share = 0\.5"):
        batched.run({**SETTINGS, "evaluate-every": 2, "evaluate-share": 0.5})
    with pytest.raises(ValueError, match="evaluate-every = 0: must be greater than or equal to 1"):
        batched.run({**SETTINGS, "evaluate-every": 0})


def test_clients_reply_late_by_group_and_the_round_goes_on(tmp_path):
    settings = {
        **SETTINGS,
        "selector": "uniform",
        "partition": "groups:2",
        "silence": False,
        "round-deadline": 30.0,
        "response-times": "median=10,sigma=0,jitter=0,group-factors=1/9",
    }
    batched.run({**settings, "output-dir": str(tmp_path / "late")})
    lines = rounds_of(tmp_path / "late")[1:]
    (roster,) = [line for line in read_lines(tmp_path / "late" / "history.jsonl") if line["type"] == "roster"]
    slow = {m for m, group in enumerate(roster["client_groups"]) if group == "1"}
    chosen = {client for line in lines for client in line["clients"]}
    assert chosen & slow
    assert chosen - slow
    for line in lines:
        assert {each["client"] for each in line["failures"]} == {
            roster["client_ids"][m] for m in line["clients"] if m in slow
        }
        assert 0 < line["seconds"] <= 30
    # With over-selection, the round continues with the first replies.
    batched.run(
        {
            **settings,
            "over-selection": 2.0,
            "response-times": "median=10,sigma=1",
            "output-dir": str(tmp_path / "over"),
        }
    )
    assert {sum(line["counts"]) for line in rounds_of(tmp_path / "over")[1:]} == {6}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("medain=3", r"medain: unknown \(did you mean median\?\); the settings are dropout, jitter, median"),
        ("median=fast", "median = 'fast': must be a number"),
        ("group-factors=1/x", "group-factors = '1/x': must be numbers above 0"),
        ("dropout=2", r"dropout = 2\.0: must be in \[0, 1\]"),
        ("group-factors=1", "group-factors = 1: must be 2 numbers, one for each group"),
    ],
)
def test_wrong_response_times_are_refused(text, message):
    with pytest.raises(ValueError, match=rf"response-times = .*{message}"):
        batched.run({**SETTINGS, "partition": "groups:2", "response-times": text})


@pytest.mark.parametrize(("key", "value"), [("response-times", "median=3"), ("device-speeds", "speeds.json")])
def test_response_times_need_the_batched_engine(key, value):
    result = CliRunner().invoke(cli, ["simulate", "--engine", "ray", "--set", f"{key}={value}"])
    assert result.exit_code == 2
    assert f"{key} = '" in result.output
    assert "needs simulate --engine batched; with other engines, the clients' response times" in result.output


def test_clients_take_as_long_as_measured_devices(tmp_path):
    """5 steps of 16 samples; softmax on digits has 650 numbers of 4 bytes. All devices are alike."""
    devices = tmp_path / "capacity.json"
    devices.write_text(
        '{"a": {"computation": 100, "communication": 1}, "b": {"computation": 100, "communication": 1}}'
    )
    settings = {"device-speeds": str(devices), "response-times": "jitter=0", "num-rounds": 2}
    batched.run({**SETTINGS, **settings, "output-dir": str(tmp_path / "run")})
    seconds = [line["seconds"] for line in rounds_of(tmp_path / "run")[1:]]
    np.testing.assert_allclose(seconds, 3 * 80 * 0.1 + 2 * 650 * 4 * 8 / 1000, rtol=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "device-speeds = 'missing.json': cannot be read: No such file or directory"),
        ({"response-times": "median=3"}, "median: cannot be combined with device-speeds = 'missing.json'"),
    ],
)
def test_device_speeds_that_cannot_be_used_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        batched.run({**SETTINGS, "device-speeds": "missing.json", **settings})
