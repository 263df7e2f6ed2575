"""`--track`: the runs of the app write to trackers, with every engine."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.container.settings import trials_from_environment
from deploy.engines import batched
from deploy.hosting import cli as hosting
from server.history import read_lines
from server.settings import RunSettings
from server.tracking import TRACKERS
from simulation.simulator import Simulator
from strategies import Reporter

from ..strategies.reporters.test_trackers import losses_in, shown
from .test_apps import DEFAULTS, federation

RUN = {"num-clients": 6, "num-rounds": 3, "track": "tensorboard"}


def losses_of(folder):
    lines = read_lines(folder / "history.jsonl")
    return [(line["round"], line["test_loss"]) for line in lines if line["type"] == "round"]


@pytest.mark.parametrize("engine", ["apps", "batched"])
def test_a_resumed_run_goes_on_in_its_place(tmp_path, engine):
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")

    def train(rounds, **settings):
        if engine == "apps":
            federation(tmp_path, 6, num_rounds=rounds, track="tensorboard", **settings)
        else:
            batched.run({**RUN, "num-rounds": rounds, "output-dir": str(tmp_path), **settings})

    train(2)
    train(4, resume=True)
    told = losses_in(tmp_path / "tensorboard")
    assert [step for step, _ in told] == [0, 1, 2, 3, 4]
    assert [value for _, value in told] == pytest.approx([loss for _, loss in losses_of(tmp_path)], rel=1e-6)
    histograms = shown(tmp_path / "tensorboard", "participation/draws")
    assert [(step, value.histo.sum) for step, value in histograms] == [
        (line["round"], sum(sum(each["counts"]) for each in trained[: line["round"]]))
        for trained in [[x for x in read_lines(tmp_path / "history.jsonl") if "counts" in x]]
        for line in trained
    ]


def test_a_failing_batched_run_tells_its_reporters(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")

    step = Simulator.step

    def fail_in_round_3(simulator):
        if simulator.round == 2:
            raise OSError("no space")
        return step(simulator)

    monkeypatch.setattr(Simulator, "step", fail_in_round_3)
    with pytest.raises(OSError, match="no space"):
        batched.run({**RUN, "output-dir": str(tmp_path)})
    notes = [value.tensor.string_val[0] for _, value in shown(tmp_path / "tensorboard", "run/text_summary")]
    assert notes[-1] == b"failed after round 2: OSError: no space"


@pytest.mark.parametrize("engine", ["apps", "batched"])
def test_the_reporters_have_finished_before_the_history_ends(tmp_path, monkeypatch, engine):
    """`cohort` ends the process of a run once the history has its last line."""
    ended = []

    class Looker(Reporter):
        def end(self, round, reason):
            ended.append(sum(line["type"] == "end" for line in read_lines(tmp_path / "history.jsonl")))

    monkeypatch.setattr(RunSettings, "reporters", lambda self: [Looker()])
    if engine == "apps":
        federation(tmp_path, 6, num_rounds=2)
    else:
        batched.run({**RUN, "track": "", "output-dir": str(tmp_path)})
    assert ended == [0]


@pytest.mark.parametrize(
    ("track", "message"),
    [
        ("wandbe", "track = 'wandbe': must be '' or different names of tensorboard, mlflow, wandb, with"),
        ("mlflow mlflow", "track = 'mlflow mlflow': must be '' or different names"),
        ("mlflow", "track = 'mlflow': mlflow needs mlflow: pip install 'cohort-app[mlflow]'"),
        ("tensorboard", "tensorboard needs tensorboardX: pip install 'cohort-app[tensorboard]'"),
    ],
)
def test_a_tracker_that_cannot_be_had_is_refused_before_anything_starts(
    track, message, tmp_path, monkeypatch
):
    monkeypatch.setattr("strategies.reporters.base.find_spec", lambda name: None)
    out = tmp_path / "run"
    given = [each for name in track.split() for each in ("--track", name)]
    for command in (["up"], ["simulate"], ["simulate", "--engine", "batched"]):
        result = CliRunner().invoke(cli, [*command, "--out", str(out), *given])
        assert (result.exit_code, message in result.stderr) == (2, True)
        assert len(result.stderr.splitlines()) == 1
    server = SimpleNamespace(folder=tmp_path, revoked_file=tmp_path / "revoked.json")
    monkeypatch.setattr(hosting, "_load", lambda folder: server)
    result = CliRunner().invoke(cli, ["server", "run", *given])
    assert (result.exit_code, message in result.stderr) == (2, True)
    with pytest.raises(ValueError, match=r"^COHORT_TRACK = '") as refused:
        trials_from_environment(out, {"COHORT_TRACK": track})
    assert message.partition(": ")[2] in str(refused.value)
    assert not out.exists()


def test_a_resumed_comparison_keeps_its_trackers(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    monkeypatch.setattr("deploy.cli._compare", lambda *_, **__: None)
    simulate = ["simulate", "--engine", "batched"]
    out = str(tmp_path / "run")
    assert CliRunner().invoke(cli, [*simulate, "--track", "tensorboard", "--out", out]).exit_code == 0
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert plan["trials"]["forecast"]["track"] == "tensorboard"
    result = CliRunner().invoke(cli, [*simulate, "--resume", out, "--track", "mlflow"])
    assert "track = mlflow: the run to be resumed has tensorboard" in result.stderr
    monkeypatch.setattr("strategies.reporters.base.find_spec", lambda name: None)
    result = CliRunner().invoke(cli, [*simulate, "--resume", out])
    assert (result.exit_code, "needs tensorboardX: pip install" in result.stderr) == (2, True)


def test_a_run_without_a_folder_has_no_trackers():
    with pytest.raises(ValueError, match="track = 'tensorboard': needs output-dir, the folder of the run"):
        RunSettings.from_run_config({**DEFAULTS, "track": "tensorboard"})


def test_the_extras_of_the_trackers_have_their_names():
    assert {name: each.extra for name, each in TRACKERS.items()} == {name: name for name in TRACKERS}
