"""Among many clients a checkpoint holds what has changed; it is read as if it held everything."""

import errno
import json
import os
import random
import shutil
import zipfile
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import changed_rows, checkpoint
from strategies.changed_rows import CopiedRows, with_changes
from strategies.checkpoint import Checkpoint, CheckpointError, CheckpointFolder

from .test_checkpoint import ALONE, names, said_until_killed, same

MANY = 100


@pytest.fixture(autouse=True)
def many_rows(monkeypatch):
    monkeypatch.setattr(changed_rows, "MANY_ROWS", MANY)


class Known:
    """A state in which a client is added or changed each round, as that of the attendance."""

    def __init__(self, size):
        self.values = [0] * size
        self.changed = set()
        self.settled = 0

    def change(self, at, value):
        self.values[at : at + 1] = [value]
        self.changed.add(at)

    def state(self):
        return list(self.values)

    def changes(self):
        return [[at, self.values[at]] for at in sorted(self.changed)]

    def settle(self):
        self.changed.clear()
        self.settled += 1


def restored(found):
    """Return the values of a `Known` in a checkpoint."""
    values = list(found.meta["known"])
    for at, value in found.changes.get("known", ()):
        values[at : at + 1] = [value]
    return values


class Run:
    """A run of which each round changes one client, and the model."""

    def __init__(self, size=10 * MANY):
        self.arrays = {
            "norms": np.full(size, np.nan),
            "times": np.zeros((size, 3), np.float32),
            "offences": np.zeros((size, 2), np.uint8),
            "few": np.zeros(7),
        }
        self.known = Known(size)
        self.round = 0

    def step(self, client=None, grow=0):
        self.round += 1
        client = self.round % len(self.arrays["norms"]) if client is None else client
        for name in ("norms", "times", "offences"):
            array = self.arrays[name]
            added = np.zeros((grow, *array.shape[1:]), array.dtype)
            self.arrays[name] = np.concatenate([array, added])
        self.arrays["norms"][client] = -0.0 if self.round % 2 else self.round / 7
        self.arrays["times"][client, 1] = self.round
        self.arrays["offences"][client, 0] += 1
        self.arrays["few"] += 1.0
        self.known.change(client, self.round)
        return self

    def checkpoint(self):
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        return Checkpoint(
            self.round, arrays, {"note": self.round}, {"seed": 1}, [self.round], {"known": self.known}
        )

    def is_in(self, found):
        """Return whether a checkpoint holds this run."""
        note = Checkpoint(self.round, self.arrays, found.meta, {"seed": 1})
        return same(found, note) and found.meta["note"] == self.round and restored(found) == self.known.values


def saved(path, rounds, size=10 * MANY):
    told = []
    folder, run = CheckpointFolder(path, report=told.append), Run(size)
    for _ in range(rounds):
        assert folder.save(run.step().checkpoint())
    return folder, run, told


# --- what is stored ------------------------------------------------------------------------------------


@given(
    st.sampled_from(["?", "u1", "i2", "f4", "f8", "c8", "c16", "M8[s]", ">f8"]),
    st.sampled_from([(), (1,), (2,), (3,)]),
    st.lists(st.integers(0, MANY + 9), max_size=30),
    st.integers(0, 10),
)
@settings(max_examples=150)
def test_exactly_the_changed_bits_and_the_added_rows_are_found(dtype, row, changed, added):
    size = np.dtype(dtype).itemsize * int(np.prod(row))
    before = np.arange(MANY * size, dtype=np.uint8).reshape(MANY, size)
    after = np.concatenate([before, np.zeros((added, size), np.uint8)])
    rows = sorted({at for at in changed if at < MANY} | set(range(MANY, MANY + added)))
    for at in rows:
        after[at, at % size] ^= 1 + at % 127

    def typed(array):
        return array.reshape(-1).view(dtype).reshape(len(array), *row)

    copies = CopiedRows({"a": typed(before)})
    found = copies.changed({"a": typed(after)})["a"]
    assert found.tolist() == rows
    again = with_changes(typed(before), len(after), found, typed(after)[found])
    assert (again.tobytes(), again.dtype, again.shape) == (
        after.tobytes(),
        np.dtype(dtype),
        typed(after).shape,
    )


@pytest.mark.parametrize(
    "after",
    [
        np.ones(MANY),  # most rows have changed
        np.zeros(MANY - 1),
        np.zeros(MANY, np.float32),
        np.zeros((MANY, 1)),
        np.zeros(2 * MANY)[::2],
        np.zeros(2 * MANY + 1),  # most rows are added
    ],
)
def test_another_array_is_written_whole(after):
    assert CopiedRows({"a": np.zeros(MANY)}).changed({"a": after}) == {}
    assert not CopiedRows({"a": np.zeros((MANY, 9)), "b": np.zeros(MANY - 1)}).names


@given(st.lists(st.tuples(st.integers(0, MANY - 1), st.integers(0, 3)), min_size=1, max_size=25))
@settings(max_examples=40)
def test_a_checkpoint_of_changes_comes_back_as_it_was(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("run")
    folder, run = CheckpointFolder(path), Run()
    for client, grow in steps:
        assert folder.save(run.step(client, grow).checkpoint())
        assert run.is_in(CheckpointFolder(path).newest({"seed": 1}))
    folder.release()


def test_a_file_holds_the_changes_of_all_rounds_since_its_base_and_no_more(tmp_path):
    sizes = []
    for size in (1_000, 100_000):
        path = tmp_path / str(size)
        folder, run = CheckpointFolder(path), Run(size)
        for round in range(1, 6):
            assert folder.save(run.step(2 * round).checkpoint())
        assert names(path)[0] == "round-00000001.npz"
        last = path / "round-00000005-00000001.npz"
        with np.load(last) as file:
            assert {name for name in file if name.startswith("rows/")} == {
                "rows/norms", "rows/times", "rows/offences"
            }  # fmt: skip
            assert file["rows/norms"].tolist() == [4, 6, 8, 10]
            assert file["values/times"][:, 1].tolist() == [2, 3, 4, 5]
            assert json.loads(file["meta"].tobytes())["changes"] == {
                "known": [[4, 2], [6, 3], [8, 4], [10, 5]]
            }
        sizes.append(last.stat().st_size)
    small, large = sizes
    assert large - small < 20  # the numbers of rows have more digits


def test_all_of_a_state_is_asked_for_only_when_a_full_file_is_written(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Known, "state", lambda self: asked.append(None) or list(self.values))
    _, run, _ = saved(tmp_path, 20, size=10_000)
    assert len(asked) == run.known.settled == 1


def test_a_run_of_few_clients_has_full_files_only(tmp_path):
    _, run, _ = saved(tmp_path, 4, size=MANY - 1)
    assert names(tmp_path) == [f"round-0000000{round}.npz" for round in (2, 3, 4)]
    assert run.known.settled == 4


def test_a_full_file_is_readable_for_earlier_versions(tmp_path):
    saved(tmp_path, 1)
    with np.load(tmp_path / "round-00000001.npz") as file:
        meta = json.loads(file["meta"].tobytes())
    assert meta["version"] == 5
    assert meta["meta"] == {"note": 1, "known": [0, 1, *[0] * (10 * MANY - 2)]}


# --- which files there are -----------------------------------------------------------------------------


def test_a_full_file_is_written_when_the_changes_would_fill_it(tmp_path):
    folder, run = CheckpointFolder(tmp_path, keep=1000), Run(10 * MANY)
    for _ in range(60):
        assert folder.save(run.step().checkpoint())
    full = sorted(tmp_path.glob("round-????????.npz"))
    assert len(full) > 2
    first, second = (int(file.stem.split("-")[1]) for file in full[:2])
    between = [tmp_path / f"round-{round:08d}-{first:08d}.npz" for round in range(first + 1, second)]
    written = sum(file.stat().st_size for file in between)
    assert 0.9 * full[0].stat().st_size <= written < full[0].stat().st_size + between[-1].stat().st_size


def test_a_full_file_is_written_after_a_hundred_rounds_since_so_many_are_lost_with_it(tmp_path):
    folder, run = CheckpointFolder(tmp_path, keep=1000), Run(200 * MANY)
    for _ in range(102):
        assert folder.save(run.step(0).checkpoint())
    full = sorted(tmp_path.glob("round-????????.npz"))
    assert [file.name for file in full] == ["round-00000001.npz", "round-00000102.npz"]


def test_the_last_few_stay_with_what_they_need_and_one_that_needs_none_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_MOST_CHANGES", 4)
    folder, run = CheckpointFolder(tmp_path), Run(100 * MANY)
    expected = {
        1: ["1"],
        3: ["1", "2-1", "3-1"],
        5: ["1", "3-1", "4-1", "5-1"],
        6: ["1", "4-1", "5-1", "6"],
        7: ["1", "5-1", "6", "7-6"],
        9: ["1", "5-1", "6", "7-6", "8-6", "9-6"],
        11: ["6", "9-6", "10-6", "11"],
        14: ["6", "10-6", "11", "12-11", "13-11", "14-11"],
    }
    for round in range(1, 15):
        assert folder.save(run.step(0).checkpoint())
        found = [
            "-".join(str(int(number)) for number in name[:-4].split("-")[1:]) for name in names(tmp_path)
        ]
        assert found == expected.get(round, found)
    assert folder.rounds() == [6, 10, 11, 12, 13, 14]


def test_a_resumed_run_begins_with_a_full_file_and_keeps_what_earlier_files_need(tmp_path):
    folder, run, _ = saved(tmp_path, 5, size=100 * MANY)
    folder.release()
    again = CheckpointFolder(tmp_path)
    assert run.is_in(again.newest())
    assert again.save(run.step().checkpoint())
    assert names(tmp_path) == [
        "round-00000001.npz", "round-00000004-00000001.npz", "round-00000005-00000001.npz",
        "round-00000006.npz",
    ]  # fmt: skip
    assert run.is_in(again.newest())


def test_without_its_base_the_next_file_is_full(tmp_path):
    folder, run, _ = saved(tmp_path, 3)
    (tmp_path / "round-00000001.npz").unlink()
    assert folder.save(run.step().checkpoint())
    assert (tmp_path / "round-00000004.npz").exists()
    assert run.is_in(folder.newest())


# --- damage --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with two bases, and a copy of the run as of the last file of each."""
    path = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed_rows, "MANY_ROWS", MANY)
        patch.setattr(checkpoint, "_MOST_CHANGES", 2)
        saved(path, 5)
    assert names(path) == [
        "round-00000001.npz", "round-00000003-00000001.npz", "round-00000004.npz",
        "round-00000005-00000004.npz",
    ]  # fmt: skip
    return path


def run_of(rounds):
    run = Run()
    for _ in range(rounds):
        run.step()
    return run


def newest_with(whole, name, content):
    told, file = [], whole / name
    before = file.read_bytes()
    try:
        file.write_bytes(content(before))
        return CheckpointFolder(whole, report=told.append).newest({"seed": 1}), told
    finally:
        file.write_bytes(before)


@given(st.data(), st.sampled_from(["round-00000005-00000004.npz", "round-00000004.npz"]))
@settings(max_examples=200)
def test_no_damage_of_a_file_or_of_its_base_goes_unseen(whole, data, name):
    def damaged(content):
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            return content[:at]
        return content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :]

    found, told = newest_with(whole, name, damaged)
    # Of some bytes in a zip file nothing depends, like that of the time: then it is whole.
    left = 5 if not told else 4 if name.startswith("round-00000005") else 3
    assert run_of(left).is_in(found)
    assert found.results == list(range(1, left + 1))


def test_a_damaged_base_is_named_and_costs_the_files_that_need_it(whole):
    found, told = newest_with(whole, "round-00000004.npz", lambda content: content[:-50])
    assert run_of(3).is_in(found)
    changes, base = told
    assert changes.startswith(
        f"{whole}/round-00000005-00000004.npz: refused: its base round-00000004.npz cannot"
    )
    assert changes.endswith("; the one before is used")
    assert base.startswith(f"{whole}/round-00000004.npz: refused: damaged (")


def test_another_file_in_the_place_of_the_base_is_refused(whole, tmp_path):
    other = Run()
    other.arrays["norms"][50] = 1.0
    folder = CheckpointFolder(tmp_path)
    for _ in range(4):
        run = other.step()
    folder.save(run.checkpoint())
    content = (tmp_path / "round-00000004.npz").read_bytes()
    found, told = newest_with(whole, "round-00000004.npz", lambda _: content)
    assert "it is not the file of which this one holds the changes" in told[0]
    assert run_of(3).is_in(found)


def test_changes_without_a_usable_base_do_not_begin_a_new_run(whole, tmp_path):
    shutil.copy(whole / "round-00000005-00000004.npz", tmp_path)
    told = []
    folder = CheckpointFolder(tmp_path, report=told.append)
    assert folder.rounds() == [5]
    with pytest.raises(CheckpointError, match="holds no checkpoint that can be used"):
        folder.newest()
    assert "its base round-00000004.npz cannot be used: " in told[0]
    assert "No such file" in told[0]


def test_a_missing_member_is_damage(whole, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(whole, path)
    file = path / "round-00000005-00000004.npz"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for lost in [name for name in members if name != "meta.npy"]:
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                if name != lost:
                    archive.writestr(name, content)
        told = []
        assert run_of(4).is_in(CheckpointFolder(path, report=told.append).newest())
        assert lost in told[0]


# --- crashes -------------------------------------------------------------------------------------------


class Broken:
    """Lets the n-th call fail that writes, syncs or renames."""

    def __init__(self, monkeypatch, at):
        self.left = at
        real_open = Path.open

        def opened(path, mode="r", *args, **kwargs):
            file = real_open(path, mode, *args, **kwargs)
            if mode in ("wb", "r+b"):
                real_write = file.write

                def write(content):
                    if self.fails():
                        real_write(bytes(content)[: len(content) // 2])  # a full disk takes some of it
                        file.flush()
                        self.raise_it()
                    return real_write(content)

                return _Proxy(file, write)
            return file

        monkeypatch.setattr(Path, "open", opened)
        for owner, name in ((os, "fsync"), (Path, "replace")):
            monkeypatch.setattr(owner, name, self.failing(getattr(owner, name)))

    def fails(self):
        self.left -= 1
        return self.left == 0

    def raise_it(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing(self, call):
        def instead(*args):
            if self.fails():
                self.raise_it()
            return call(*args)

        return instead


class _Proxy:
    """A file whose write is another one's."""

    def __init__(self, file, write):
        self._file = file
        self.write = write

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


@pytest.mark.parametrize("full", [False, True])
def test_a_disk_that_fails_at_any_write_leaves_what_was_there(tmp_path, monkeypatch, full):
    """Also no change is forgotten: what a file that failed would have held is in the next one."""
    monkeypatch.setattr(checkpoint, "_MOST_CHANGES", 2 if full else 100)
    for at in count(1):
        path = tmp_path / str(at)
        folder, run, told = saved(path, 3)
        with monkeypatch.context() as patch:
            broken = Broken(patch, at)
            done = folder.save(run.step().checkpoint())
        if broken.left > 0:  # there are no more calls that can fail
            assert done
            assert at > 10
            break
        assert not done
        assert told[0].startswith("ROUND 4 IS NOT SAVED")
        assert not list(path.glob("*.unfinished"))
        assert CheckpointFolder(path).newest().round in (3, 4)  # 4 if the folder's own fsync failed
        for _ in range(3):
            assert folder.save(run.step().checkpoint())
            found = CheckpointFolder(path).newest()
            assert run.is_in(found)
            assert found.results == list(range(1, run.round + 1))


WRITER = f"""{ALONE}
import numpy as np
import strategies.changed_rows as rows
rows.MANY_ROWS, module._MOST_CHANGES = 100, 4

class Rounds:
    def __init__(self, rounds): self.rounds, self.first = rounds, 0
    def state(self): return self.rounds
    def changes(self): return self.rounds[self.first:]
    def settle(self): self.first = len(self.rounds)

folder.claim()
found = folder.newest({{"seed": 1}})
round = found.round if found else 0
norms = found.arrays["norms"] if found else np.zeros(30_000)
rounds = Rounds(found.meta["rounds"] + found.changes.get("rounds", []) if found else [])
while True:
    round += 1
    norms[round] = round
    rounds.rounds.append(round)
    state = {{"norms": norms}}, {{}}, {{"seed": 1}}, [round], {{"rounds": rounds}}
    assert folder.save(module.Checkpoint(round, *state))
    print(round, flush=True)
"""


def test_a_writer_that_is_killed_loses_nothing_that_it_had_saved(tmp_path):
    chance, told, saved, seen = random.Random(7), [], 0, set()
    for _ in range(10):
        said = said_until_killed(WRITER, tmp_path, chance.uniform(0, 0.05))
        assert said[0] == saved + 1  # it went on where the one before was killed
        seen.update(names(tmp_path))
        found = CheckpointFolder(tmp_path, report=told.append).newest({"seed": 1})
        assert found.round in (said[-1], said[-1] + 1)  # the last may be done, but not said yet
        saved, rounds = found.round, list(range(1, found.round + 1))
        assert found.arrays["norms"].nonzero()[0].tolist() == rounds
        assert found.meta["rounds"] + found.changes.get("rounds", []) == found.results == rounds
    assert told == []  # not one torn file
    assert any(name.count("-") == 2 for name in seen)
