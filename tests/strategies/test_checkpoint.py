"""No crash and no damage leaves less than the checkpoint before; whose checkpoint it is, is looked at."""

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strategies import checkpoint
from strategies.checkpoint import Checkpoint, CheckpointError, CheckpointFolder

from ..support import disks


def state(round):
    """Return a state that tells its round in every part."""
    arrays = {"w": np.full((4, 3), round / 7, np.float32), "selector/norms": np.arange(5.0) * round}
    return Checkpoint(round, arrays, {"clients": [f"client-{round}"]}, {"seed": 1}, [results(round)])


def results(round):
    return ["evaluate", round, {"loss": 1 / (1 + round), "per-class": [round, None]}]


def same(one, other):
    return (
        one is not None
        and (one.round, one.meta, one.fingerprint) == (other.round, other.meta, other.fingerprint)
        and list(one.arrays) == list(other.arrays)
        and all(
            (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
            for mine, theirs in zip(one.arrays.values(), other.arrays.values(), strict=True)
        )
    )


def filled(path, *rounds, keep=3):
    told = []
    folder = CheckpointFolder(path, keep, report=told.append)
    for round in rounds:
        assert folder.save(state(round))
    return folder, told


def names(path):
    return sorted(file.name for file in path.glob("round-*"))


# --- what is stored ------------------------------------------------------------------------------------


@given(
    arrays=st.dictionaries(
        st.from_regex(r"[\w./ -]{1,20}", fullmatch=True),
        hnp.arrays(
            st.one_of(
                hnp.boolean_dtypes(),
                hnp.integer_dtypes(),
                hnp.unsigned_integer_dtypes(),
                hnp.floating_dtypes(),
                hnp.complex_number_dtypes(),
                hnp.datetime64_dtypes(),
                hnp.unicode_string_dtypes(max_len=4),
                hnp.byte_string_dtypes(max_len=4),
            ),
            hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
        ),
        max_size=4,
    ),
    round=st.integers(0, 10**9),
)
@settings(max_examples=60)
def test_arrays_come_back_as_they_were(tmp_path_factory, arrays, round):
    written = Checkpoint(round, arrays, {"größe": [1, 2.5, None, 2**63]}, {"seed": 2**63 - 1})
    folder = CheckpointFolder(tmp_path_factory.mktemp("folder"))
    assert folder.save(written)
    assert same(folder.newest({"seed": 2**63 - 1}), written)
    folder.release()


def test_the_order_in_memory_stays_since_sums_depend_on_it(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(Checkpoint(1, {"w": np.asfortranarray(np.ones((3, 4))), "x": np.arange(12.0)[::3]}))
    found = folder.newest()
    assert found.arrays["w"].flags.f_contiguous
    assert found.arrays["x"].tolist() == [0, 3, 6, 9]
    assert found.arrays["w"].flags.writeable


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"w": np.array([{}])}, r"array 'arrays/w' is of type object"),
        ({"w": np.zeros(2, np.dtypes.StringDType())}, r"array 'arrays/w' is of type StringDType"),
        ({"a\0b": np.zeros(2)}, r"array name 'arrays/a\\x00b'"),
    ],
)
def test_an_unstorable_checkpoint_is_refused_and_nothing_is_lost(tmp_path, arrays, message):
    folder, _ = filled(tmp_path, 1)
    with pytest.raises((TypeError, ValueError), match=message):
        folder.save(Checkpoint(2, arrays))
    assert names(tmp_path) == ["round-00000001.npz"]
    assert same(folder.newest(), state(1))


def test_the_last_few_stay(tmp_path):
    filled(tmp_path, 0, 1, 2, 3, keep=5)[0].release()  # as if killed before the oldest were removed
    folder, _ = filled(tmp_path, 10, keep=2)
    assert folder.rounds() == [3, 10]
    assert same(folder.newest(), state(10))


@pytest.mark.parametrize("keep", [1, 0, -2])
def test_one_checkpoint_alone_could_not_be_replaced_safely(tmp_path, keep):
    with pytest.raises(ValueError, match=f"keep = {keep}: must be at least 2"):
        CheckpointFolder(tmp_path, keep)


def test_an_empty_folder_has_no_checkpoint_and_is_not_created(tmp_path):
    assert CheckpointFolder(tmp_path / "new").newest() is None
    assert not (tmp_path / "new").exists()


# --- whose it is ---------------------------------------------------------------------------------------

RUN = {
    "selector": "osmd",
    "settings": {"alpha": 0.4, "batch": None},
    "arrays": {"w": [[4, 3], "float32"]},
    "sizes": (1, 2),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selector": "md"}, "selector = 'md': the run to be resumed has 'osmd'"),
        ({"settings": {"alpha": 0.5, "batch": None}}, "settings.alpha = 0.5: the run to be resumed has 0.4"),
        ({"settings": {"alpha": 0.4}}, "settings.batch: not set now; the run to be resumed has None"),
        ({"settings": {**RUN["settings"], "beta": 1}}, "settings.beta = 1: the run to be resumed has none"),
        (
            {"arrays": {"w": [[4, 4], "float32"]}},
            "arrays.w = [[4, 4], 'float32']: the run to be resumed has [[4, 3], 'float32']",
        ),
        (
            {"selector": "md", "sizes": (1, 3)},
            "selector = 'md': the run to be resumed has 'osmd'\n"
            "sizes = [1, 3]: the run to be resumed has [1, 2]",
        ),
    ],
)
def test_another_runs_checkpoint_is_refused_with_each_difference(tmp_path, change, message):
    folder = CheckpointFolder(tmp_path)
    folder.save(Checkpoint(1, {}, fingerprint=RUN))
    assert folder.newest(RUN) is not None
    assert folder.newest() is not None
    with pytest.raises(CheckpointError) as refused:
        folder.newest({**RUN, **change})
    assert str(refused.value) == message


# --- damage --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole")
    filled(path, 1, 2)
    return path


def with_second(whole, content):
    told = []
    file = whole / "round-00000002.npz"
    before = file.read_bytes()
    try:
        file.write_bytes(content(before))
        return CheckpointFolder(whole, report=told.append).newest(), told
    finally:
        file.write_bytes(before)


@given(st.data(), st.sampled_from(["cut", "flip", "overwrite"]))
@settings(max_examples=300)
def test_no_damage_goes_unseen_and_the_file_before_is_used(whole, data, damage):
    def damaged(content):
        at = data.draw(st.integers(0, len(content) - 1))
        if damage == "cut":
            return content[:at]
        flipped = bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))])
        instead = flipped if damage == "flip" else data.draw(st.binary(max_size=300))
        return content[:at] + instead + content[at + len(instead) :]

    found, told = with_second(whole, damaged)
    # Of some bytes in a zip file nothing depends, like that of the time: then it is whole.
    assert same(found, state(1 if told else 2))
    for line in told:
        assert line.startswith(f"{whole}/round-00000002.npz: refused: damaged (")
        assert line.endswith("; the one before is used")
        assert "\n" not in line
    assert told or damage != "cut"


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"w": np.zeros(3)}, "not a checkpoint of Cohort"),
        ({"meta": np.zeros(3)}, "not a checkpoint of Cohort"),
        ({"meta": np.frombuffer(b'["cohort-checkpoint"]', np.uint8)}, "not a checkpoint of Cohort"),
        ({"meta": np.array([{"pickled": 1}], dtype=object)}, "not a checkpoint of Cohort"),
        (
            {"meta": np.frombuffer(b'{"magic": "cohort-checkpoint", "version": 4}', np.uint8)},
            "format 4, of an older version of Cohort; this one reads 5",
        ),
        (
            {"meta": np.frombuffer(b'{"magic": "cohort-checkpoint", "version": 6}', np.uint8)},
            "format 6, of a newer version of Cohort; this one reads 5",
        ),
    ],
)
def test_foreign_files_and_other_versions_are_named(tmp_path, arrays, why):
    folder, told = filled(tmp_path, 1)
    np.savez(tmp_path / "round-00000002.npz", **arrays)
    assert same(folder.newest(), state(1))
    assert told == [f"{tmp_path}/round-00000002.npz: refused: {why}; the one before is used"]


def test_a_compressed_file_is_refused_before_it_takes_memory(tmp_path):
    """A file of a few bytes could take any amount of memory; Cohort compresses nothing."""
    folder, told = filled(tmp_path, 1, 2)
    file = tmp_path / "round-00000002.npz"
    with zipfile.ZipFile(file) as before:
        members = {name: before.read(name) for name in before.namelist()}
    with zipfile.ZipFile(file, "w") as after:
        for name, content in members.items():
            after.writestr(name, content, zipfile.ZIP_STORED if name == "meta.npy" else zipfile.ZIP_DEFLATED)
    assert same(folder.newest(), state(1))
    assert "is compressed, which Cohort never does" in told[0]


def test_a_file_of_another_round_is_refused(tmp_path):
    folder, told = filled(tmp_path, 1, 2)
    shutil.copyfile(tmp_path / "round-00000001.npz", tmp_path / "round-00000002.npz")
    assert same(folder.newest(), state(1))
    assert told == [f"{tmp_path}/round-00000002.npz: refused: holds round 1, not 2; the one before is used"]


def test_without_a_usable_checkpoint_the_run_does_not_start_anew(tmp_path):
    folder, told = filled(tmp_path, 1, 2)
    for file in tmp_path.glob("*.npz"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="holds no checkpoint that can be used"):
        folder.newest()
    assert [line.rpartition("; ")[2] for line in told] == ["the one before is used", "there is none before"]


def test_a_refused_file_is_not_the_newest_once_its_round_was_repeated(tmp_path):
    folder, _ = filled(tmp_path, 1, 2, 3, 4)
    for round in (3, 4):
        (tmp_path / f"round-0000000{round}.npz").write_bytes(b"torn")
    assert same(folder.newest(), state(2))
    assert folder.save(state(3))
    assert names(tmp_path) == ["round-00000002.npz", "round-00000003.npz", "round-00000004.npz.refused"]
    assert same(folder.newest(), state(3))


# --- crashes -------------------------------------------------------------------------------------------

# The module by itself: importing Flower with the rest of its package would be most of the test.
ALONE = f"""
import sys, types
package = types.ModuleType("strategies")
package.__path__ = [{str(Path(checkpoint.__file__).parent)!r}]
sys.modules["strategies"] = package
import strategies.checkpoint as module
folder = module.CheckpointFolder(sys.argv[1])
"""


def said_until_killed(writer, folder, seconds):
    """Run a program that writes checkpoints to a folder, kill it, and return the rounds that it has said."""
    process = subprocess.Popen(
        [sys.executable, "-c", writer, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    first = process.stdout.readline()  # it has begun
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    return [int(line) for line in (first + rest).split()]


def test_a_disk_that_is_really_full_leaves_what_was_there(tmp_path):
    with disks.mounted(tmp_path, "1m"):
        told = []
        folder = CheckpointFolder(tmp_path, report=told.append)
        weights = np.ones(60_000, np.float32)  # four would fit, a fifth does not
        for round in (1, 2, 3):
            assert folder.save(Checkpoint(round, {"w": weights * round}))
        (tmp_path / "of others").write_bytes(bytes(200_000))
        assert not folder.save(Checkpoint(4, {"w": weights * 4}))
        assert told == [
            f"ROUND 4 IS NOT SAVED in {tmp_path}: No space left on device; "
            "the run continues, and the earlier checkpoints are still there"
        ]
        assert folder.rounds() == [1, 2, 3]
        found = folder.newest()
        assert (found.arrays["w"] == 3).all()
        (tmp_path / "of others").unlink()
        assert folder.save(Checkpoint(5, {"w": weights * 5}))
        assert folder.rounds() == [2, 3, 5]
        folder.release()


def test_unfinished_files_of_a_killed_writer_are_removed(tmp_path):
    filled(tmp_path, 1)
    (tmp_path / "round-00000002.npz.unfinished").write_bytes(b"half")
    folder = CheckpointFolder(tmp_path)
    assert same(folder.newest(), state(1))
    folder.claim()
    assert names(tmp_path) == ["round-00000001.npz"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_two_processes_do_not_write_one_runs_checkpoints(tmp_path):
    folder, _ = filled(tmp_path, 1)
    command = [sys.executable, "-c", f"{ALONE}folder.claim(wait=float(sys.argv[2]))", str(tmp_path)]
    refused = subprocess.run([*command, "0"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"process {os.getpid()} writes its checkpoints here" in refused.stderr
    waiting = subprocess.Popen([*command, "60"])
    folder.release()
    assert waiting.wait() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_no_other_user_can_lock_the_folder(tmp_path):
    """Whoever can read a file can lock it, and so keep a run from being continued after a kill."""
    (tmp_path / "lock").touch(mode=0o644)  # as earlier versions left it
    (tmp_path / "lock").chmod(0o644)
    for path in (tmp_path, tmp_path / "new"):
        folder = CheckpointFolder(path)
        folder.claim()
        assert (path / "lock").stat().st_mode & 0o777 == 0o600
        folder.release()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
@pytest.mark.parametrize("end", ["killed", "released"])
def test_other_processes_see_that_the_owner_was_killed(tmp_path, end):
    folder = CheckpointFolder(tmp_path)
    assert not folder.is_claimed()
    assert not folder.is_abandoned()
    assert folder.last_claim() is None
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{ALONE}folder.claim(); print(flush=True); input(); folder.release()",
            tmp_path,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    assert folder.is_claimed()
    assert not folder.is_abandoned()
    claimed = folder.last_claim()
    assert claimed is not None
    if end == "killed":
        process.kill()
    process.communicate(b"\n")
    assert not folder.is_claimed()
    assert folder.is_abandoned() == (end == "killed")
    assert (folder.last_claim() == claimed) == (end == "killed")
