"""A restarted container continues the run, unless it has ended or its settings have changed."""

import pytest

from deploy.container import run
from deploy.container.settings import VARIABLES, trials_from_environment
from deploy.engines import superlink

from ...support.histories import write_history

RUNNING = {"success": True, "runs": [{"status": "running"}]}
AWAY = {"success": False, "error-message": "Connection to the SuperLink is unavailable."}


@pytest.mark.parametrize(
    ("answers", "goes_on"),
    [
        ([AWAY, AWAY, RUNNING], True),  # the run survives a restart of the SuperLink
        ([AWAY, {"success": True, "runs": [{"status": "finished:failed"}]}], False),
        ([{"success": False, "error-message": "database is locked"}, RUNNING], True),
        ([{"success": False, "error-message": "Run ID not found."}], False),
    ],
)
def test_a_run_that_still_goes_on_is_not_submitted_again(tmp_path, monkeypatch, answers, goes_on):
    submitted = {"success": True, "run-id": 18}
    left = iter([submitted, *answers, submitted])
    asked = []

    def flwr(self, command, *_):
        asked.append(command)
        return next(left)

    monkeypatch.setattr(run._Cluster, "flwr", flwr)
    monkeypatch.setattr(run._Cluster, "open_log", lambda self, run_id: None)
    monkeypatch.setattr(superlink, "copy_app", lambda *_: None)
    monkeypatch.setattr(run, "RETRY", 0.0)
    cluster, config = run._Cluster(), {"output-dir": str(tmp_path / "md")}
    assert cluster.submit(config, "md").run_id == "18"  # the first submission
    (tmp_path / "md.run-id").write_text("17")
    assert cluster.submit(config, "md-2").run_id == ("17" if goes_on else "18")
    assert asked == ["run", *["list"] * len(answers), *([] if goes_on else ["run"])]
    assert (tmp_path / "md.run-id").read_text() == ("17" if goes_on else "18")


def test_an_unfinished_run_is_resumed_unless_the_settings_have_changed(tmp_path, monkeypatch, capsys):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        run, "trials_from_environment", lambda folder: trials_from_environment(folder, environment)
    )
    environment = {"COHORT_CLIENTS": "4", "COHORT_ROUNDS": "3", "COHORT_SELECTOR": "uniform md"}
    folder, trials = run._last_or_new(tmp_path)
    write_history(folder / "uniform", [2.0] * 4)  # finished; md was killed before it started

    assert run._last_or_new(tmp_path)[0] == folder
    again = run._last_or_new(tmp_path)[1]
    assert [(trial.name, trial.done) for trial in again] == [("uniform", True), ("md", False)]
    assert "resumes " in capsys.readouterr().out

    environment["COHORT_SEED"] = "9"
    other, trials = run._last_or_new(tmp_path)
    assert other != folder
    assert "the settings have changed: this is a new run" in capsys.readouterr().out
    for trial in trials:
        write_history(other / trial.name, [2.0] * 4)
    assert run._last_or_new(tmp_path)[0] not in (folder, other)  # nothing to resume
