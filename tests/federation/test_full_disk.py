"""A real federation on a file system that is full for longer than any program repeats its requests."""

import contextlib
import errno
import json
import threading
import time

import pytest

from deploy.runs.follow_and_resume import Watcher, train
from deploy.runs.trials import Trial
from server.history import FILE_NAME, RunHistory

from ..nemesis.federations import ENGINES
from ..nemesis.watch import Watch
from ..support import disks
from ..support.processes import linux, wait_for

pytestmark = [pytest.mark.network, pytest.mark.slow, linux]

FULL = 75.0  # s; SuperNodes and ServerApps repeat their requests for 60 s
SOON = 60.0  # s from then on to a round in which all clients train; some 8 s on an idle machine
CLIENTS = 3


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A file system of 200 MB, on which temporary files are too."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with disks.mounted(folder, "200m"):
        (folder / "tmp").mkdir()
        monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
        yield folder


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_federation_outlives_a_full_disk(disk, engine):
    federation = ENGINES[engine](disk / "all", CLIENTS)
    config = {
        "selector": "md",
        "num-clients": CLIENTS,
        "clients-per-round": CLIENTS,
        "num-rounds": 10_000,
        "partition": "balanced",
        "learning-rate": 1.0,
        "output-dir": str(federation.run),
    }
    trial = Trial("run", config, RunHistory(federation.run / FILE_NAME))
    watch = Watch(federation.run)

    def follow(running):
        with contextlib.suppress(Exception):  # the federation ends before the run does
            train(running, [trial], Watcher(print), at_once=False)

    def complete(since):
        return [line for line in watch.rounds_since(since) if line["num_available"] == CLIENTS]

    def fill(name):
        """Write until nothing more fits; whether that was so."""
        with (disk / name).open("wb", buffering=0) as file:
            try:
                while file.write(bytes(65536)) == 65536:
                    pass
            except OSError as error:
                return error.errno == errno.ENOSPC
        return True  # a part of the last 64 kB did not fit

    with federation as running:
        threading.Thread(target=follow, args=(running,), daemon=True).start()
        wait_for(lambda: len(watch.rounds) > 3, 120, lambda: "no rounds")
        began = time.time()
        for number in range(int(FULL)):  # again and again: the programs remove files of theirs
            assert fill(f"of others {number}"), "the disk is not full"
            time.sleep(1)
        # Rounds may end meanwhile: the SuperLink's database writes over space that the database has.
        during = len(watch.rounds_since(began + 20))
        for path in disk.glob("of others *"):
            path.unlink()
        freed = time.time()
        wait_for(lambda: complete(freed), SOON, lambda: str(watch.rounds_since(began)))
        print(
            f"{engine}: {during} rounds ended while the disk was full; "
            f"all clients answered {complete(freed)[0]['at'] - freed:.1f} s after the disk had room"
        )
    watch.close()
    # A full disk takes no checkpoint, so a ServerApp that ended goes on from an earlier round.
    assert [each for each in watch.violations if "the run resumed after" not in each] == []
    lines = [json.loads(line) for line in (federation.run / FILE_NAME).read_text().splitlines()]
    rounds = [line["round"] for line in lines if line["type"] == "round"]
    assert rounds == [*range(len(rounds))]
