"""The results beside the checkpoints: appended only, and each checkpoint finds its own."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.checkpoint import Checkpoint, CheckpointError, CheckpointFolder

FILE = "results.jsonl"


def save(folder, round, *lines):
    assert folder.save(Checkpoint(round, {"w": np.zeros(2)}, {}, {}, lines))


def found(path):
    checkpoint = CheckpointFolder(path).newest()
    assert checkpoint is not None
    return checkpoint


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["save", "save", "save", "crash", "damage the last", "a torn tail"]),
            st.binary(max_size=30),
        ),
        max_size=12,
    )
)
@settings(max_examples=25)
def test_whatever_happens_a_checkpoint_has_the_results_of_its_rounds(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("run")
    folder, round = CheckpointFolder(path), 0
    usable = 0  # checkpoints: with none, a resume is refused
    for event, junk in events:
        if event == "save":
            round += 1
            usable = min(usable + 1, 3)
            # The number of results varies, so that a repeated round would show.
            save(folder, round, *[[round, number, junk.hex()] for number in range(round % 3)])
            continue
        folder.release()
        if event == "damage the last" and usable > 1:
            usable -= 1
            (path / f"round-{round:08d}.npz").write_bytes(junk)
        if event == "a torn tail":
            with (path / FILE).open("ab") as file:
                file.write(junk)
        folder = CheckpointFolder(path, report=lambda line: None)
        again = folder.newest()
        round = again.round if again else 0
    folder.release()
    if round:
        assert [line[:2] for line in found(path).results] == [
            [each, number] for each in range(1, round + 1) for number in range(each % 3)
        ]


def test_results_are_appended_and_nothing_is_written_twice(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for round in range(1, 6):
        save(folder, round, ["loss", round, {"loss": 1 / round, "n": None}])
    lines = (tmp_path / FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == found(tmp_path).results
    assert [line[1] for line in found(tmp_path).results] == [1, 2, 3, 4, 5]


def test_an_earlier_checkpoint_that_was_kept_has_only_its_own_results(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for round in range(1, 6):
        save(folder, round, f"round {round}")
    for round in (5, 4):
        (tmp_path / f"round-{round:08d}.npz").write_bytes(b"torn")
    folder.release()
    again = CheckpointFolder(tmp_path, report=lambda line: None)
    checkpoint = again.newest()
    assert checkpoint.results == ["round 1", "round 2", "round 3"]
    save(again, 4, "round 4, once more")
    assert found(tmp_path).results == ["round 1", "round 2", "round 3", "round 4, once more"]


def test_a_torn_tail_is_cut_by_the_next_save(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1, "round 1")
    folder.release()
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"torn " * 100)
    again = CheckpointFolder(tmp_path)
    assert again.newest() is not None
    save(again, 2, "round 2")
    assert (tmp_path / FILE).read_text() == '"round 1"\n"round 2"\n'


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (
            lambda content: content[:-3],
            "results.jsonl is too short: the last 3 bytes of its results are missing",
        ),
        (
            lambda content: content[:-4] + b"9" + content[-3:],
            "results.jsonl is damaged: its first 30 bytes have another checksum",
        ),
    ],
)
def test_a_checkpoint_whose_results_are_damaged_is_refused(tmp_path, damage, why):
    folder = CheckpointFolder(tmp_path)
    for round in (1, 2, 3):
        save(folder, round, f"round {round}")
    file = tmp_path / FILE
    file.write_bytes(damage(file.read_bytes()))
    told = []
    checkpoint = CheckpointFolder(tmp_path, report=told.append).newest()
    assert (checkpoint.round, checkpoint.results) == (2, ["round 1", "round 2"])
    assert told == [f"{tmp_path}/round-00000003.npz: refused: {why}; the one before is used"]


def test_without_its_results_a_run_continues_if_a_person_removes_the_file(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for round in (1, 2, 3):
        save(folder, round, f"round {round}")
    folder.release()
    file = tmp_path / FILE
    file.write_bytes(b"0" + file.read_bytes()[1:])
    with pytest.raises(CheckpointError, match="holds no checkpoint that can be used"):
        CheckpointFolder(tmp_path, report=lambda line: None).newest()
    file.unlink()
    told = []
    again = CheckpointFolder(tmp_path, report=told.append)
    checkpoint = again.newest()
    assert (checkpoint.round, checkpoint.results) == (3, [])
    assert told == [f"{file}: missing: the run continues without its earlier results"]
    save(again, 4, "round 4")
    assert found(tmp_path).results == ["round 4"]


def test_a_file_that_was_shortened_while_the_run_goes_on_is_not_filled_with_zeros(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for round in (1, 2):
        save(folder, round, f"round {round}")
    (tmp_path / FILE).write_bytes(b"")
    save(folder, 3, "round 3")
    assert (found(tmp_path).round, found(tmp_path).results) == (3, ["round 3"])


def test_saving_costs_the_same_after_many_rounds(tmp_path):
    """674 ms after 1e5 rounds, when all results were written anew; now it is that of round 1."""
    folder = CheckpointFolder(tmp_path)
    line = ["evaluate_metrics_serverapp", 1, {"loss": 0.123456789, "accuracy": 0.987654321}]

    def seconds(first):
        times = []
        for round in range(first, first + 9):
            began = time.perf_counter()
            save(folder, round, line, line)
            times.append(time.perf_counter() - began)
        return sorted(times)[4]

    early = seconds(1)
    save(folder, 10, *[line] * 100_000)
    late = seconds(11)
    size = (tmp_path / "round-00000019.npz").stat().st_size
    assert size < 2000
    assert late < 5 * early + 0.02  # writing 1e5 results takes 0.3 s and more
