"""Each tracker holds the rounds of a run, and a resumed run goes on in its own place."""

import dataclasses
import json
import socket
import sqlite3
import struct
import threading
import time
import urllib.request
from contextlib import suppress

import numpy as np
import pytest

from strategies import JSONLines, MLflow, Prometheus, RoundReport, RunInfo, TensorBoard, WandB
from strategies.reporters import base
from strategies.reporters.reporters import Reporters
from strategies.rounds.record import RoundRecord
from strategies.selectors import Feedback, Selection

from .test_reporters import Recorder, run

RUN = RunInfo(5, {"selector": "uniform"})


def report_of(round, loss, group="north"):
    """A round in which client 2 is drawn twice and answers, and client 0 fails."""
    selection = Selection(np.array([2, 0]), np.array([2, 1]), np.full(2, 0.3), np.ones(2), np.full(2, 0.5))
    numbers = np.array([1.5, np.nan])
    record = RoundRecord(
        round, 3, selection, np.array([1.0, 0.0]),
        Feedback(numbers, numbers, numbers, numbers, np.array([True, False])),
        failures={0: "late"}, train_loss=loss, seconds=0.25,
    )  # fmt: skip
    return RoundReport(
        round, record, {0: "c0", 2: "c2"}, {"loss": loss}, {"train-loss": loss}, {}, {group: {"loss": loss}},
        participation=np.array([1, round, 1]),
    )  # fmt: skip


def play(reporter, rounds, loss, resumed=False, end="end"):
    """Tell a reporter about a part of a run; with ``end=""``, the run is killed."""
    if resumed:
        reporter.resume(RUN, rounds[0] - 1)
    else:
        reporter.begin(RUN)
        reporter.round(RoundReport(0, metrics={"loss": 9.0}))
    for round in rounds:
        reporter.round(report_of(round, loss))
    if end:
        getattr(reporter, end)(rounds[-1], "")


# --- TensorBoard ---------------------------------------------------------------------------------------


def events(folder):
    """Yield the events of all files, in the order in which TensorBoard reads them."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    for file in sorted(folder.glob("*tfevents*")):
        content, at = file.read_bytes(), 0
        while at < len(content):  # length, its checksum, the event, its checksum
            (length,) = struct.unpack_from("<Q", content, at)
            yield event_pb2.Event.FromString(content[at + 12 : at + 12 + length])
            at += 12 + length + 4


def shown(folder, tag):
    """Return what TensorBoard shows: a start with a step hides all earlier events of this step or later."""
    kept = []
    for event in events(folder):
        if event.HasField("session_log") and event.session_log.status == event.session_log.START:
            kept = [each for each in kept if each[0] < event.step]
        kept += [(event.step, value) for value in event.summary.value if value.tag == tag]
    return kept


def losses_in(folder):
    return [(step, value.simple_value) for step, value in shown(folder, "evaluate/loss")]


def test_tensorboard_shows_each_round_once_after_a_resume(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    play(TensorBoard(tmp_path / "tb", {"task": "digits"}), range(1, 4), 1.0, end="")
    play(TensorBoard(tmp_path / "tb"), range(3, 6), 0.5, resumed=True)
    assert losses_in(tmp_path / "tb") == [(0, 9.0), (1, 1.0), (2, 1.0), (3, 0.5), (4, 0.5), (5, 0.5)]
    assert [value.simple_value for _, value in shown(tmp_path / "tb", "group/north/loss")][-1] == 0.5
    step, histogram = shown(tmp_path / "tb", "participation/draws")[-1]
    assert step == 5
    assert list(histogram.histo.bucket) == [1, 5, 1]
    assert list(histogram.histo.bucket_limit) == [0.5, 1.5, 2.5]
    assert (histogram.histo.num, histogram.histo.sum) == (7, 7)
    texts = [value.tensor.string_val[0].decode() for _, value in shown(tmp_path / "tb", "run/text_summary")]
    assert "| task | digits |" in texts[0]
    assert texts[1:] == ["resumed after round 2", "ended after round 5."]


def test_tensorboard_says_that_a_run_was_stopped(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    play(TensorBoard(tmp_path), range(1, 3), 1.0, end="stopped")
    texts = [value.tensor.string_val[0].decode() for _, value in shown(tmp_path, "run/text_summary")]
    assert texts[-1] == "stopped after round 2: "


def test_tensorboard_hides_an_earlier_run_in_the_folder(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    play(TensorBoard(tmp_path), range(1, 4), 1.0)
    play(TensorBoard(tmp_path), range(1, 2), 0.5)
    assert losses_in(tmp_path) == [(0, 9.0), (1, 0.5)]


def test_tensorboard_itself_reads_the_files_in_the_same_way(tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    play(TensorBoard(tmp_path), range(1, 4), 1.0, end="")
    play(TensorBoard(tmp_path), range(3, 6), 0.5, resumed=True, end="failed")
    found = reader.EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    found.Reload()
    assert [(each.step, each.value) for each in found.Scalars("evaluate/loss")] == losses_in(tmp_path)
    assert [each.step for each in found.Histograms("participation/draws")] == [1, 2, 3, 4, 5]


def test_tensorboard_merges_the_bars_of_a_long_histogram(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    reporter = TensorBoard(tmp_path)
    reporter.begin(RUN)
    many = report_of(1, 1.0)
    object.__setattr__(many, "participation", np.ones(130, np.int64))
    reporter.round(many)
    reporter.end(1, "")
    ((_, value),) = shown(tmp_path, "participation/draws")
    assert list(value.histo.bucket) == [3.0] * 43 + [1.0]


# --- MLflow --------------------------------------------------------------------------------------------


def mlflow_runs(folder):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlruns/mlflow.db")
    return client, client.search_runs([client.get_experiment_by_name("cohort").experiment_id])


def test_mlflow_continues_its_run(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    play(MLflow(tmp_path, settings={"task": "x" * 9000}), range(1, 4), 1.0, end="failed")
    client, (found,) = mlflow_runs(tmp_path)
    assert (found.info.status, found.data.params["selector"]) == ("FAILED", "uniform")
    reporter = MLflow(tmp_path)
    reporter.resume(RUN, 2)
    assert mlflow_runs(tmp_path)[1][0].info.status == "RUNNING"
    for round in range(3, 6):
        reporter.round(report_of(round, 0.5))
    reporter.end(5, "")
    client, (found,) = mlflow_runs(tmp_path)
    assert found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "evaluate/loss")
    steps = [(0, 9.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 0.5), (5, 0.5)]
    assert sorted((each.step, each.value) for each in history) == steps


def test_mlflow_shows_a_stopped_run_as_killed(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    play(MLflow(tmp_path), range(1, 3), 1.0, end="stopped")
    assert mlflow_runs(tmp_path)[1][0].info.status == "KILLED"
    play(MLflow(tmp_path), range(3, 5), 1.0, resumed=True)
    assert mlflow_runs(tmp_path)[1][0].info.status == "FINISHED"


def test_mlflow_tells_two_runs_in_one_folder_apart(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    killed = MLflow(tmp_path)
    killed.begin(RUN)
    killed.round(RoundReport(0, metrics={"loss": 9.0}))
    play(MLflow(tmp_path), range(1, 3), 1.0)  # begins again after the kill in round 1
    assert len(mlflow_runs(tmp_path)[1]) == 1
    play(MLflow(tmp_path), range(1, 3), 0.5)
    runs = mlflow_runs(tmp_path)[1]
    assert sorted(each.data.metrics["evaluate/loss"] for each in runs) == [0.5, 1.0]


def test_mlflow_survives_a_kill_while_it_creates_its_tables(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlruns").mkdir()
    # MLflow refuses a database that has some of its tables.
    with sqlite3.connect(tmp_path / "mlruns" / "mlflow.db.new") as database:
        database.execute("CREATE TABLE metrics (key TEXT)")
    play(MLflow(tmp_path), range(1, 3), 1.0, resumed=True)
    _, (found,) = mlflow_runs(tmp_path)
    assert found.info.status == "FINISHED"
    assert [each.name for each in (tmp_path / "mlruns").iterdir()] == ["mlflow.db"]


# --- W&B -----------------------------------------------------------------------------------------------


def test_wandb_continues_its_run_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged = []
    log = wandb.sdk.wandb_run.Run.log

    def noted(run, values, step):
        logged.append((step, values["evaluate/loss"]))
        log(run, values, step=step)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", noted)
    play(WandB(tmp_path), range(1, 4), 1.0)
    play(WandB(tmp_path), range(3, 6), 0.5, resumed=True)
    assert logged == [(0, 9.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 0.5), (5, 0.5)]
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    note = json.loads((tmp_path / "wandb.json").read_text())
    assert {file.name for file in files} == {f"run-{note['id']}.wandb"}
    assert note["round"] == 5
    assert sum(file.stat().st_size for file in files) > 1000


@pytest.mark.parametrize(("end", "code"), [("end", 0), ("failed", 1), ("stopped", 255)])
def test_wandb_gets_an_exit_code(end, code, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    codes = []
    finish = wandb.sdk.wandb_run.Run.finish

    def noted(run, exit_code=None):
        codes.append(exit_code)
        finish(run, exit_code)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "finish", noted)
    play(WandB(tmp_path), range(1, 2), 1.0, end=end)
    assert codes == [code]


# --- Prometheus ----------------------------------------------------------------------------------------


def scraped(reporter):
    parser = pytest.importorskip("prometheus_client.parser")
    url = f"http://{reporter.address}:{reporter.port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_idle_connections_to_prometheus_take_no_threads_and_few_files(
    monkeypatch,
):
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    monkeypatch.setattr("strategies.reporters.prometheus.PATIENCE", 0.2)
    reporter = Prometheus(0)
    reporter.begin(RunInfo(7))
    before = threading.active_count()
    idle = []
    for _ in range(50):  # the kernel keeps a few, and the others wait
        idle.append(socket.socket())
        idle[-1].setblocking(False)
        with suppress(BlockingIOError):
            idle[-1].connect(("127.0.0.1", reporter.port))
    time.sleep(0.5)
    assert threading.active_count() <= before + 2
    for each in idle[10:]:
        each.close()
    assert scraped(reporter)["cohort_planned_rounds",] == 7
    reporter.end(0, "")
    for each in idle:
        each.close()


def test_prometheus_serves_the_last_round_and_counts():
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    reporter = Prometheus(0)
    reporter.begin(RUN)
    reporter.round(report_of(1, 1.0, group='no"rth\n'))
    reporter.round(report_of(2, 0.5, group="south\x1b[2J"))
    found = scraped(reporter)
    assert found["cohort_round",] == 2
    assert found["cohort_planned_rounds",] == 5
    assert found["cohort_rounds_total",] == 2
    assert found["cohort_failed_clients_total",] == 2
    assert found["cohort_selected_clients_total",] == 4
    assert found["cohort_round_seconds_total",] == 0.5
    assert found["cohort_evaluation", "loss"] == 0.5
    assert found["cohort_group", "south_x1b_2J", "loss"] == 0.5
    assert not [key for key in found if key[0] == "cohort_group" and "no" in key[1]]
    reporter.end(2, "")
    with pytest.raises(OSError, match="refused"):
        scraped(reporter)


def test_a_taken_port_leaves_the_run_alone():
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    first, recorder = Prometheus(0), Recorder()
    first.begin(RUN)
    run(Prometheus(first.port), recorder, rounds=1)
    assert recorder.calls[-1] == ("end", 1, "")
    assert scraped(first)["cohort_round",] == 0
    first.end(0, "")


# --- JSON lines ----------------------------------------------------------------------------------------


def test_json_lines_are_cut_back_at_a_resume(tmp_path):
    reporter = JSONLines(tmp_path / "new" / "rounds.jsonl")
    play(reporter, range(1, 4), 1.0, end="failed")
    with reporter.path.open("ab") as file:
        file.write(b'{"type": "round", "rou')  # a torn line
    play(JSONLines(reporter.path), range(3, 6), 0.5, resumed=True)
    lines = reporter.read()
    rounds = [(line["round"], line["metrics"]["loss"]) for line in lines if line["type"] == "round"]
    assert rounds == [(0, 9.0), (1, 1.0), (2, 1.0), (3, 0.5), (4, 0.5), (5, 0.5)]
    assert [line["type"] for line in lines if line["type"] != "round"] == ["run", "error", "resume", "end"]
    assert lines[-2]["client_ids"] == ["c2", "c0"]
    assert lines[-2]["failures"] == [{"client": "c0", "reason": "late"}]
    assert lines[-2]["update_norms"] == [1.5, None]


def test_json_lines_name_the_clients_in_flight(tmp_path):
    """The line of each such round of a buffered run was lost."""
    record = report_of(1, 1.0).record
    assert record is not None
    reporter = JSONLines(tmp_path / "rounds.jsonl")
    reporters = Reporters([reporter])
    reporters.begin(RUN)
    reporters.round(1, record=dataclasses.replace(record, in_flight=(3,)), name_of="c{}".format)
    reporters.end(1)
    assert [line["in_flight"] for line in reporter.read() if line["type"] == "round"] == [["c3"]]


def test_json_lines_never_overwrite_the_rounds_of_another_run(tmp_path):
    reporter = JSONLines(tmp_path / "rounds.jsonl")
    reporter.begin(RUN)
    play(reporter, range(1, 3), 1.0)  # begins again, since no round was told
    with pytest.raises(FileExistsError, match="holds the rounds of another run"):
        reporter.begin(RUN)
    assert len(reporter.read()) == 5


# --- all -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (TensorBoard, r"TensorBoard: needs tensorboardX: pip install 'flwr-cohort\[tensorboard\]'"),
        (MLflow, r"MLflow: needs mlflow: pip install 'flwr-cohort\[mlflow\]'"),
        (WandB, r"WandB: needs wandb: pip install 'flwr-cohort\[wandb\]'"),
        (Prometheus, r"Prometheus: needs prometheus_client: pip install 'flwr-cohort\[prometheus\]'"),
    ],
)
def test_a_missing_package_is_named_when_the_reporter_is_made(create, message, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=message):
        create(tmp_path)
