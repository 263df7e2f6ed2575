"""A file of a device's own samples must fit the run's task, and the device notes what it trained."""

import json

import numpy as np
import pytest

from client.training_note import LONGEST_PROBLEM, Note, read_note

from ..support.client_app import DATA, MODEL, TRAIN, report, say


def file_of(folder, inputs=DATA.inputs, labels=DATA.labels):
    np.savez(folder / "mine.npz", inputs=inputs, labels=labels)
    return str(folder / "mine.npz")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"inputs": DATA.inputs * 255}, r"inputs are from 0 to 255: must be from 0 to 1 for the run's task"),
        ({"inputs": DATA.inputs - 0.5}, r"inputs are from -0.5 to 0.5: must be from 0 to 1"),
        ({"inputs": DATA.inputs[:, :63]}, r"inputs have 63 features: must have 64"),
        ({"labels": DATA.labels + 1}, r"labels are up to 10: must be at most 9"),
    ],
)
def test_samples_that_do_not_fit_are_refused_before_anything_is_trained(tmp_path, wrong, message):
    node = {"data": file_of(tmp_path, **wrong)}
    for kind in ("query.status", "train"):
        with pytest.raises(ValueError, match=rf"^data = .*mine.npz: {message}"):
            say(kind, TRAIN, node, arrays=MODEL)


def test_the_device_notes_its_trainings_and_its_last_error(tmp_path):
    file = tmp_path / "trained.json"
    node = {"training-file": str(file), "data": file_of(tmp_path)}
    assert read_note(file) == Note()
    say("train", TRAIN, node, arrays=MODEL)
    report("query.status", node=node)
    assert read_note(file).trained == 1
    first = read_note(file).last
    file_of(tmp_path, inputs=DATA.inputs * 255)
    with pytest.raises(ValueError, match="from 0 to 255"):
        say("query.status", TRAIN, node)
    note = read_note(file)
    assert (note.trained, note.last) == (1, first)
    assert "inputs are from 0 to 255: must be from 0 to 1" in note.problem
    assert len(note.problem) <= LONGEST_PROBLEM
    file_of(tmp_path)
    report("query.status", node=node)
    assert read_note(file) == Note(1, first)
    pause = tmp_path / "paused"
    pause.touch()
    say("train", TRAIN, {**node, "pause-file": str(pause)}, arrays=MODEL)
    assert read_note(file).trained == 1


@pytest.mark.parametrize(
    "text", ["[", "3", '{"trained": 1}', '{"trained": "x", "last": 1, "problem": ""}', '{"trained": 1e999}']
)
def test_a_damaged_note_is_as_none(tmp_path, text):
    file = tmp_path / "trained.json"
    file.write_text(text)
    assert read_note(file) == Note()
    say("train", TRAIN, {"training-file": str(file)}, arrays=MODEL)
    assert json.loads(file.read_text())["trained"] == 1


def test_a_disk_without_space_does_not_stop_a_training(tmp_path):
    say("train", TRAIN, {"training-file": str(tmp_path / "missing" / "trained.json")}, arrays=MODEL)
