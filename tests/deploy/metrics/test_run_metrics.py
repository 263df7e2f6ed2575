"""The numbers of runs are those of their histories, also after a resume and a restart of the metrics."""

import os
import threading

import pytest

from deploy.metrics import run_metrics as module
from deploy.metrics.exposition import Sample, exposition
from deploy.metrics.run_metrics import Runs
from server.history import TOLD_TO_END
from strategies.checkpoint import Checkpoint, CheckpointFolder

from .samples import GROUP, append, roster, round_line, run_line


def values(runs, run="a"):
    """Return the samples of a run, under the metric and the further labels."""
    runs.step()
    return {
        (metric, *labels[1:]) if len(labels) > 1 else metric: value
        for metric, value, labels in runs.samples()
        if labels[:1] in ((run,), ())
    }


@pytest.fixture
def runs(tmp_path):
    """Runs that have begun before there was any history."""
    found = Runs(tmp_path)
    found.step()
    return found


def test_all_numbers_of_a_run(tmp_path, runs):
    skipped = round_line(2, skipped="nobody", seconds=0.5, test_loss=None)
    append(tmp_path / "a", run_line(), {"type": "round", "round": 0, "test_loss": 2.0}, roster())
    append(tmp_path / "a", round_line(1), skipped)
    found = values(runs)
    assert found[("cohort_run_info", "md", "digits", 3)] == 1
    assert found["cohort_run_starts_total"] == 1
    assert found["cohort_planned_rounds"] == 9
    assert found["cohort_round"] == found["cohort_rounds_total"] == 2
    assert found["cohort_skipped_rounds_total"] == 1
    assert found["cohort_round_seconds_total"] == 3.0
    assert found["cohort_last_round_seconds"] == 0.5
    assert found[("cohort_phase_seconds_total", "train")] == 3.5
    assert found[("cohort_phase_seconds_total", "poll")] == 1.0
    assert found[("cohort_phase_seconds_total", "aggregate")] == 0.5
    assert found["cohort_known_clients"] == 6
    assert found["cohort_selectable_clients"] == 5
    assert found["cohort_selected_clients_total"] == 6
    assert found["cohort_failed_clients_total"] == found["cohort_clipped_clients_total"] == 2
    assert found["cohort_quarantined_clients"] == 2
    assert found["cohort_silent_clients"] == 1
    assert (found["cohort_sent_messages_total"], found["cohort_sent_bytes_total"]) == (8, 2000)
    assert (found["cohort_received_messages_total"], found["cohort_received_bytes_total"]) == (6, 1600)
    assert found["cohort_train_loss"] == 0.75
    assert "cohort_test_loss" not in found  # it was not finite
    assert found["cohort_test_accuracy_ratio"] == 0.875
    assert found[("cohort_group_loss", GROUP)] == 0.25
    assert found[("cohort_group_accuracy_ratio", GROUP)] == 0.5
    assert found["cohort_unreadable_histories"] == 0


def test_a_resume_counts_repeated_rounds_again_and_no_round_twice(tmp_path, runs):
    append(tmp_path / "a", run_line(), *(round_line(each) for each in (1, 2, 3)))
    assert values(runs)["cohort_rounds_total"] == 3
    # Round 4 is written, and then the ServerApp dies. A resume after round 2 replaces the file.
    append(tmp_path / "a", round_line(4))
    history = tmp_path / "a" / "history.jsonl"
    kept = history.read_text().splitlines(keepends=True)[:3]
    new = tmp_path / "new"
    new.write_text("".join(kept))
    new.replace(history)
    append(tmp_path / "a", {"type": "resume", "round": 2, "num_rounds": 20})
    found = values(runs)
    assert (found["cohort_round"], found["cohort_rounds_total"]) == (2, 3)
    assert (found["cohort_run_starts_total"], found["cohort_planned_rounds"]) == (2, 20)
    append(tmp_path / "a", round_line(3))
    found = values(runs)
    assert (found["cohort_round"], found["cohort_rounds_total"]) == (3, 4)
    append(tmp_path / "a", {"type": "end", "rounds": 3})
    assert values(runs)[("cohort_run_state", "finished")] == 1


def test_rounds_that_were_missed_before_a_resume_count(tmp_path, runs):
    append(tmp_path / "a", run_line(), round_line(1))
    runs.step()
    history = tmp_path / "a" / "history.jsonl"
    new = tmp_path / "new"
    new.write_text(history.read_text())
    new.replace(history)
    append(tmp_path / "a", round_line(2), {"type": "resume", "round": 2, "num_rounds": 9}, round_line(3))
    assert values(runs)["cohort_rounds_total"] == 3


def test_counters_begin_with_0_for_what_was_there_before(tmp_path):
    append(tmp_path / "old", run_line(), round_line(1))
    os.utime(tmp_path / "old" / "history.jsonl", (1, 1))
    append(tmp_path / "a", run_line(), roster(), *(round_line(each) for each in (1, 2, 3)))
    runs = Runs(tmp_path)
    found = values(runs)
    assert (found["cohort_round"], found["cohort_rounds_total"]) == (3, 0)
    assert found["cohort_run_starts_total"] == 0
    append(tmp_path / "a", round_line(4))
    assert values(runs)["cohort_rounds_total"] == 1
    # The older run has no samples until it is resumed.
    assert "cohort_round" not in values(runs, "old")
    append(tmp_path / "old", {"type": "resume", "round": 1, "num_rounds": 9})
    assert values(runs, "old")["cohort_round"] == 1


def test_the_state_of_a_run(tmp_path, runs):
    append(tmp_path / "a", run_line())
    checkpoints = tmp_path / "a" / "checkpoints"
    assert values(runs)[("cohort_run_state", "interrupted")] == 1
    assert "cohort_checkpoint_timestamp_seconds" not in values(runs)
    # A lock of this process is no lock for this process, so another process holds it.
    holder = os.fork()
    if holder == 0:
        folder = CheckpointFolder(checkpoints)
        folder.claim()
        folder.save(Checkpoint(1, {}, {}, {}))
        threading.Event().wait(60)
        os._exit(0)
    try:
        for _ in range(600):
            found = values(runs)
            if found[("cohort_run_state", "running")] and "cohort_checkpoint_timestamp_seconds" in found:
                break
            threading.Event().wait(0.05)
        assert found[("cohort_run_state", "running")] == 1
        saved = (checkpoints / "round-00000001.npz").stat().st_mtime
        assert found["cohort_checkpoint_timestamp_seconds"] == saved
    finally:
        os.kill(holder, 9)
        os.waitpid(holder, 0)
    assert values(runs)[("cohort_run_state", "interrupted")] == 1


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ({"type": "end", "rounds": 1}, "finished"),
        ({"type": "error", "reason": TOLD_TO_END}, "stopped"),
        ({"type": "error", "reason": "out of luck"}, "failed"),
    ],
)
def test_the_state_of_a_run_that_has_ended(tmp_path, runs, line, state):
    append(tmp_path / "a", run_line(), line)
    found = values(runs)
    states = {name[1]: value for name, value in found.items() if name[0] == "cohort_run_state"}
    assert states == {"running": 0, "interrupted": 0, "finished": 0, "stopped": 0, "failed": 0, state: 1}


def test_a_long_history_is_read_in_parts(tmp_path, runs, monkeypatch):
    monkeypatch.setattr(module, "PARTS", 2)
    read = module.Tail.read
    monkeypatch.setattr(module.Tail, "read", lambda tail: read(tail, 700))  # a line has about 600 bytes
    append(tmp_path / "a", run_line(), *(round_line(each) for each in range(1, 10)))
    before = 0.0
    for _ in range(20):
        now = values(runs)["cohort_rounds_total"]
        assert now - before <= 4
        before = now
    assert before == 9


def test_damaged_lines_and_foreign_files_do_no_harm(tmp_path, runs):
    append(tmp_path / "a", run_line(), round_line(1))
    with (tmp_path / "a" / "history.jsonl").open("a") as file:
        file.write("{torn\n[1]\n" + "[" * 100_000 + "\n")
    append(tmp_path / "a", round_line(2))
    append(tmp_path / "b", run_line(version=1))
    append(tmp_path / "c", {"type": "resume"})  # damaged: such a line is left out
    found = values(runs)
    assert found["cohort_rounds_total"] == 2
    assert found["cohort_unreadable_histories"] == 1
    with (tmp_path / "a" / "history.jsonl").open("a") as file:
        file.write('{"type": "round", "rou')  # still being written
    assert values(runs)["cohort_rounds_total"] == 2


def test_the_number_of_samples_is_bounded(tmp_path, runs):
    groups = {f"group {each:04d}": {"loss": 1.0, "accuracy": 0.5} for each in range(1000)}
    for each in range(30):
        folder = append(tmp_path / f"comparison/{each:02d}", run_line(), round_line(1, group_metrics=groups))
        os.utime(folder / "history.jsonl", (each + 1, each + 1))
        runs.step()
    found = list(runs.samples())
    shown = {sample.labels[0] for sample in found if sample.metric == "cohort_round"}
    assert shown == {f"comparison/{each:02d}" for each in range(10, 30)}
    in_groups = [sample for sample in found if sample.metric == "cohort_group_loss"]
    assert len(in_groups) == module.MOST_RUNS * module.MOST_GROUPS
    assert Sample("cohort_left_out_groups", 950, ("comparison/29",)) in found
    assert len(exposition(found)) < 500_000
