"""A run that was killed and resumed equals the run that was never stopped, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import tasks
from deploy.engines.local_cluster import LocalCluster
from deploy.processes.ports import free_ports
from server.history import HistoryWriter, RunHistory
from server.settings import CHECKPOINTS
from strategies.checkpoint import CheckpointFolder

from ..server.test_apps import federation
from ..support.devices import COHORT, Running
from ..support.processes import wait_for
from .test_federation import FOREIGN_APP, lines_of, rounds_of, write_app, write_foreign_app

# All fields of a round but its duration.
WHAT = (
    "round",
    "num_available",
    "clients",
    "client_ids",
    "counts",
    "probabilities",
    "weights",
    "responded",
    "update_norms",
    "train_losses",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "failures",
    "clipped",
    "quarantined",
    "skipped",
)


def rounds(folder):
    return [{key: line.get(key) for key in WHAT} for line in rounds_of(lines_of(folder))]


def kinds(folder):
    return [line["type"] for line in lines_of(folder) if line["type"] not in ("round", "roster")]


# --- in process ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Raised instead of a SIGKILL: neither Flower nor this project catches it."""


def killing(monkeypatch, moment, round):
    """Let the server end at a given moment of a round."""
    save = CheckpointFolder.save

    def saving(folder, checkpoint):
        if checkpoint.round == round and moment == "before its checkpoint":
            raise Killed
        done = save(folder, checkpoint)
        if checkpoint.round == round and moment == "after its checkpoint":
            raise Killed
        return done

    monkeypatch.setattr(CheckpointFolder, "save", saving)
    if moment == "before its history line":
        write = HistoryWriter.write_round

        def writing(history, record, *args, **more):
            if record.round == round:
                raise Killed
            write(history, record, *args, **more)

        monkeypatch.setattr(HistoryWriter, "write_round", writing)


MOMENTS = ("before its history line", "before its checkpoint", "after its checkpoint")


@pytest.mark.parametrize(
    ("selector", "moment", "round"),
    [
        *(("adaptive-osmd", moment, round) for moment in MOMENTS for round in (1, 6)),
        ("pow-d", MOMENTS[1], 4),
    ],
)
def test_a_run_killed_at_any_moment_resumes_as_the_same_run(tmp_path, monkeypatch, selector, moment, round):
    settings = {"selector": selector, "num_rounds": 6, "seed": 4}
    federation(tmp_path / "undisturbed", **settings)
    with monkeypatch.context() as patch:
        killing(patch, moment, round)
        with pytest.raises(Killed):
            federation(tmp_path / "killed", **settings)
    federation(tmp_path / "killed", resume=True, **settings)
    assert rounds(tmp_path / "killed") == rounds(tmp_path / "undisturbed")
    assert kinds(tmp_path / "killed") == ["run", "error", "resume", "end"]
    saved = round if moment == "after its checkpoint" else round - 1
    resumed = next(line for line in lines_of(tmp_path / "killed") if line["type"] == "resume")
    assert resumed["round"] == saved
    for model in ("model.safetensors", "best.safetensors"):
        ours, theirs = (tmp_path / run / model for run in ("killed", "undisturbed"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_a_history_without_its_first_line_is_refused_and_one_with_another_damaged_line_is_not(tmp_path):
    federation(tmp_path, selector="uniform", num_rounds=3)
    path = tmp_path / "history.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    damaged = b"\x00" * len(first) + b"\n" + b"".join(others)
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"history.jsonl: its first line, .*, is damaged"):
        federation(tmp_path, selector="uniform", num_rounds=5, resume=True)
    assert path.read_bytes() == damaged
    path.write_bytes(first + b"\x00\n" + b"".join(others))
    federation(tmp_path, selector="uniform", num_rounds=5, resume=True)
    assert [line["round"] for line in rounds(tmp_path)] == [*range(6)]


def test_a_finished_run_can_be_extended_by_more_rounds(tmp_path):
    federation(tmp_path / "longer", selector="uniform", num_rounds=3)
    federation(tmp_path / "longer", selector="uniform", num_rounds=5, resume=True)
    federation(tmp_path / "at-once", selector="uniform", num_rounds=5)
    assert rounds(tmp_path / "longer") == rounds(tmp_path / "at-once")
    assert kinds(tmp_path / "longer") == ["run", "resume", "end"]
    before = rounds(tmp_path / "longer")
    federation(tmp_path / "longer", selector="uniform", num_rounds=5, resume=True)
    assert rounds(tmp_path / "longer") == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.4}, "learning-rate = 0.4: the run to be resumed has 0.5"),
        (
            {"seed": 2, "local_steps": 7},
            "local-steps = 7: the run to be resumed has 5\nseed = 2: the run to be resumed has 1",
        ),
        ({"selector": "md"}, "selector = 'md': the run to be resumed has 'forecast'"),
    ],
)
def test_the_folder_of_another_run_is_refused_and_unchanged(tmp_path, change, message):
    federation(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=message) as refused:
        federation(tmp_path, resume=True, **change)
    assert str(refused.value) == message
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_ends_at_its_target_accuracy_and_stays_ended(tmp_path):
    federation(tmp_path / "all", num_rounds=6)
    accuracies = [line["test_accuracy"] for line in rounds(tmp_path / "all")]
    reached = next(round for round, accuracy in enumerate(accuracies) if accuracy >= accuracies[3])
    assert 0 < reached < 6
    for resume in (False, True):
        federation(tmp_path / "target", num_rounds=6, target_accuracy=accuracies[3], resume=resume)
        assert rounds(tmp_path / "target") == rounds(tmp_path / "all")[: reached + 1]
        end = lines_of(tmp_path / "target")[-1]
        assert end["rounds"] == reached
        assert end["reason"] == f"target-accuracy = {accuracies[3]:g} is reached"
        with safe_open(end["model"], "numpy") as file:
            assert json.loads(file.metadata()["cohort"]) == {"round": reached}


def test_the_best_model_is_kept(tmp_path):
    federation(
        tmp_path, num_rounds=6, learning_rate=3.0, clients_per_round=1
    )  # the accuracy goes up and down
    of = rounds(tmp_path)
    best = max(range(len(of)), key=lambda round: (of[round]["test_accuracy"], -of[round]["test_loss"]))
    with safe_open(tmp_path / "best.safetensors", "numpy") as file:
        about = json.loads(file.metadata()["cohort"])
    assert about == {
        "round": best,
        "test_accuracy": of[best]["test_accuracy"],
        "test_loss": of[best]["test_loss"],
    }
    assert lines_of(tmp_path)[-1]["best_round"] == best
    task = tasks.create("digits")
    model = load_file(tmp_path / "best.safetensors")
    assert task.evaluate(model, task.test_data()).accuracy == of[best]["test_accuracy"]


# --- processes, and kill -9 ----------------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and file locks")
NUM_CLIENTS = 4
FEDERATION = {
    "selector": "adaptive-osmd",
    "selector-settings": "learning-rate-multiplier=100",
    "num-clients": NUM_CLIENTS,
    "clients-per-round": 2,
    "seed": 3,
    "shortest-deadline": 120.0,  # a busy machine may take long
}


def undisturbed(folder, num_rounds, **settings):
    """Return the rounds of the same run in process, never stopped."""
    federation(folder, NUM_CLIENTS, num_rounds=num_rounds, **{**FEDERATION, **settings})
    return rounds(folder)


def wait_for_rounds(folder, more, what):
    before = len(rounds(folder))
    wait_for(lambda: len(rounds(folder)) >= before + more, 120, what)


def wait_for_checkpoint(folder, round, what):
    wait_for(lambda: max(CheckpointFolder(folder).rounds(), default=0) >= round, 120, what)


def writer(folder):
    """Return the id of the process that has claimed a folder of checkpoints, 0 if there is none."""
    lock = folder / "lock"
    if not CheckpointFolder(folder).is_claimed():
        return 0
    pid = int(lock.read_text() or 0)  # for a moment after the claim: that of the process before, or nothing
    return pid if pid and Path(f"/proc/{pid}").exists() else 0


def kill_writer(folder, what):
    wait_for(lambda: writer(folder), 60, lambda: f"there is no ServerApp to be killed:\n{what()}")
    pid = writer(folder)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: writer(folder) != pid, 60, lambda: f"{pid} is still there")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), NUM_CLIENTS) as running:
        yield running


@linux
@pytest.mark.network
@pytest.mark.slow
def test_ten_kills_of_the_serverapp_leave_the_same_run(cluster, tmp_path):
    num_rounds, kills = 60, 10  # more rounds than a fast machine completes before the last kill
    chance = random.Random(5)
    folder = tmp_path / "killed"
    config = {**FEDERATION, "num-rounds": num_rounds, "output-dir": str(folder)}
    for number in range(kills):
        run = cluster.submit({**config, "resume": number > 0}, f"killed-{number}")
        wait_for(lambda: writer(folder / CHECKPOINTS), 60, run.log.read_text)
        if number % 4:  # sometimes it is killed while it starts
            wait_for_rounds(folder, chance.choice([1, 2]), run.log.read_text)
        time.sleep(chance.uniform(0, 0.4))
        kill_writer(folder / CHECKPOINTS, run.log.read_text)
        cluster.abort(run)
    run = cluster.submit({**config, "resume": True}, "killed-last")
    run.wait(timeout=300)
    assert rounds(folder) == undisturbed(tmp_path / "undisturbed", num_rounds)
    resumed = [line["round"] for line in lines_of(folder) if line["type"] == "resume"]
    assert resumed == sorted(resumed)
    assert len(set(resumed)) > kills // 2  # the kills came at many moments
    assert [file.suffix for file in (folder / CHECKPOINTS).iterdir()].count(".npz") == 3
    assert not list(folder.rglob("*.unfinished"))


@linux
@pytest.mark.network
@pytest.mark.slow
def test_the_death_of_a_serverapp_that_has_claimed_nothing_is_noticed(cluster, tmp_path, monkeypatch):
    dies = {**FOREIGN_APP, "server/app.py": "import os, signal\napp = os.kill(os.getpid(), signal.SIGKILL)"}
    monkeypatch.setattr(cluster, "app", write_app(tmp_path / "app", dies))
    run = cluster.submit({}, "dies")
    wait_for(lambda: run.over, 30, run.log.read_text)  # Flower needs a minute


@linux
@pytest.mark.network
@pytest.mark.slow
def test_a_foreign_app_with_a_named_strategy_resumes(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "app", write_foreign_app(tmp_path / "app"))
    for name in ("killed", "undisturbed"):
        (tmp_path / name).mkdir()
    chance = random.Random(6)
    state = tmp_path / "killed" / "state"
    for number in range(3):
        run = cluster.submit({"folder": str(tmp_path / "killed"), "rounds": 20}, f"stranger-{number}")
        wait_for_checkpoint(state, 4 * number + 2, run.log.read_text)
        time.sleep(chance.uniform(0, 0.2))
        kill_writer(state, run.log.read_text)
        cluster.abort(run)
    for name in ("killed", "undisturbed"):
        run = cluster.submit({"folder": str(tmp_path / name), "rounds": 20}, f"stranger-{name}")
        wait_for((tmp_path / name / "result.json").exists, 120, run.log.read_text)
        run.wait(timeout=60)
    killed, same = (json.loads((tmp_path / n / "result.json").read_text()) for n in ("killed", "undisturbed"))
    assert killed == same
    assert list(killed["metrics"]) == [str(round) for round in range(1, 21)]
    assert killed["w"][0] > 0


@linux
@pytest.mark.network
@pytest.mark.slow
def test_cohort_up_starts_a_killed_serverapp_again_and_resumes_when_it_is_killed_itself(tmp_path):
    run = tmp_path / "run"
    options = ("--clients", "4", "--per-round", "2", "--seed", "3", "--rounds", "12")
    selectors = ("--selector", "uniform", "--selector", "pow-d")
    first = Running(tmp_path / "first.log", "up", "--out", str(run), *options, *selectors)
    try:
        first.wait_for("uniform  round 2/")
        kill_writer(run / "uniform" / CHECKPOINTS, first.log.read_text)
        first.wait_for("uniform: its ServerApp died; it is started again", timeout=40)  # not Flower's minute
        first.wait_for("uniform  resumes after round")
        first.wait_for("pow-d  round 1/")
        first.wait_for("uniform  round 5/")
    finally:
        first.process.kill()
        first.process.wait()
    # All its processes end soon; the test does not wait for that.
    second = Running(tmp_path / "second.log", "up", "--resume", str(run))
    try:
        assert second.process.wait(timeout=240) == 0, second.said
    finally:
        second.process.kill()
    for selector in ("uniform", "pow-d"):
        same = {"selector": selector, "selector-settings": "", "seed": 3}
        assert rounds(run / selector) == undisturbed(tmp_path / selector, 12, **same), selector
        assert RunHistory(run / selector / "history.jsonl").read()[-1]["type"] == "end"
    # A finished trial stays finished: a third run has nothing to do.
    before = (run / "pow-d" / "history.jsonl").read_bytes()
    third = Running(tmp_path / "third.log", "up", "--resume", str(run))
    assert third.process.wait(timeout=60) == 0, third.said
    assert "there is nothing left to train" in third.said
    assert (run / "pow-d" / "history.jsonl").read_bytes() == before


@linux
@pytest.mark.network
@pytest.mark.slow
def test_a_run_survives_the_death_of_the_superlink_and_then_of_the_serverapp_too(tmp_path):
    folder = tmp_path / "server"
    port, control = free_ports(2)
    started = [
        Running(
            tmp_path / "server.log",
            *("server", "up", "--host", "localhost", "--listen", "127.0.0.1", "--dir", str(folder)),
            *("--port", str(port), "--control-port", str(control)),
        )
    ]
    try:
        started[0].wait_for("up at localhost:")
        for index in range(2):
            invitation = tmp_path / f"device-{index}.invitation"
            arguments = [
                "server",
                "invite",
                f"device-{index}",
                "--out",
                str(invitation),
                "--dir",
                str(folder),
            ]
            subprocess.run([COHORT, *arguments], check=True, timeout=120, capture_output=True)
            started.append(
                Running(
                    tmp_path / f"device-{index}.log",
                    *("client", "join", "--invitation", str(invitation), "--partition", f"{index}/2"),
                    *("--state-dir", str(tmp_path / f"device-{index}")),
                )
            )
        for device in started[1:]:
            device.wait_for("online as device-")
        settings = ["num-clients=2", "clients-per-round=1", "num-rounds=25", "selector=pow-d", "seed=3"]
        sets = [word for each in settings for word in ("--set", each)]
        first = Running(tmp_path / "first.log", "server", "run", *sets, "--dir", str(folder))
        started.append(first)
        wait_for(lambda: list(folder.glob("runs/*/history.jsonl")), 120, first.log.read_text)
        (run,) = (path.parent for path in folder.glob("runs/*/history.jsonl"))
        wait_for(lambda: len(rounds(run)) > 4, 120, first.log.read_text)
        reached = len(rounds(run))
        before = writer(run / CHECKPOINTS)
        database = f"--database\0{folder / 'superlink.db'}"
        os.kill(processes_with_arguments(database)[0], signal.SIGKILL)
        wait_for_rounds(run, 2, first.log.read_text)
        assert writer(run / CHECKPOINTS) == before  # the same ServerApp went on
        # Now kill both at once, and the command that follows the run.
        first.process.kill()
        os.kill(processes_with_arguments(database)[0], signal.SIGKILL)
        kill_writer(run / CHECKPOINTS, first.log.read_text)
        started[0].wait_for("superlink ended with code -9: started again")

        def resumed():
            again = Running(tmp_path / "again.log", "server", "run", "--resume", "last", "--dir", str(folder))
            return again.process.wait(timeout=240) == 0

        wait_for(resumed, 240, lambda: (tmp_path / "again.log").read_text())
        assert kinds(run)[-1] == "end"
        assert "resume" in kinds(run)
        federation(
            tmp_path / "same", num_clients=2, clients_per_round=1, num_rounds=25, selector="pow-d", seed=3
        )
        ours, theirs = rounds(run), rounds(tmp_path / "same")
        for line in ours:  # the clients have other names here
            line["client_ids"] = line["client_ids"] and [
                name.replace("device-", "client-0") for name in line["client_ids"]
            ]
        # A device may come back later than the SuperLink; rounds without it, or without its loss, differ. If
        # the SuperLink is away for a whole poll, no message is sent and nobody is selected.
        missed = [
            line["round"]
            for line in rounds_of(lines_of(run))[1:]
            if line["num_available"] < 2
            or line["messages_received"] < line["messages_sent"]
            or not line["client_ids"]
        ]
        same_until = min(missed, default=26)
        assert same_until >= reached
        assert ours[:same_until] == theirs[:same_until]
        assert [line["round"] for line in ours] == list(range(26))
    finally:
        for each in reversed(started):
            each.end()


def processes_with_arguments(text):
    """Return the processes whose command line contains this text, the oldest first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return sorted(found)
