"""Plays a script without kills of the server and with them; the results must be equal."""

import gc
import logging
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.common.logger import FLOWER_LOGGER

from strategies.checkpoint import CheckpointFolder
from strategies.options import Checkpoints

from .script import Script, draw, initial_arrays
from .watch import BrokenError, Watch, require_same
from .world import KilledError, World

_IN_MEMORY = Path("/dev/shm")  # its files use no disk


@dataclass
class Outcome:
    """The result of a seed.

    Attributes
    ----------
    script : Script
        The script that was played.
    error : str
        The invariant that is violated; "" if all hold.
    story : list of str
        The events, one line each.
    """

    script: Script
    error: str
    story: list[str]


def play(seed):
    """Draw the script of a seed, play it and check it."""
    story = []
    with _quiet(), np.errstate(all="ignore"), _folder() as folder:
        script = draw(seed)
        try:
            _play(script, folder, story)
        except Exception as error:  # whatever the code under test raises
            what = str(error) if isinstance(error, BrokenError) else f"{type(error).__name__}: {error}"
            return Outcome(script, what, story)
    return Outcome(script, "", story)


def _play(script, folder, story):
    story.append("without kills")
    watch = _History(script, (), folder / "undisturbed" if script.kills else None, story).run()
    if not script.kills:
        return
    story.append("with kills of the server")
    other = _History(script, script.kills, folder / "killed", story).run()
    for number, record in watch.records.items():
        require_same(record, other.records[number], f"after kills round {number}")
    for number, model in watch.models.items():
        same = all(model[name].tobytes() == other.models[number][name].tobytes() for name in model)
        if not same:
            raise BrokenError(f"after kills the model of round {number} differs")
    _compare_states(folder / "undisturbed", folder / "killed")


def _compare_states(one, other):
    """Compare the last checkpoints: they hold everything that later rounds depend on."""
    a, b = CheckpointFolder(one).newest(), CheckpointFolder(other).newest()
    if a is None or b is None:
        raise BrokenError("no checkpoint is left")
    if a.round != b.round:
        raise BrokenError(f"the last checkpoints are of rounds {a.round} and {b.round}")
    if a.arrays.keys() != b.arrays.keys():
        raise BrokenError(f"states hold {set(a.arrays) ^ set(b.arrays)} once")
    for name, array in a.arrays.items():
        same = array.dtype == b.arrays[name].dtype and array.tobytes() == b.arrays[name].tobytes()
        if not same:
            raise BrokenError(f"after kills the state {name} is {b.arrays[name]}, was {array}")
    for path, was, found in _differences(a.meta, b.meta):
        raise BrokenError(f"after kills the note {path} is {found}, was {was}")
    for path, was, found in _differences(a.results, b.results):
        raise BrokenError(f"after kills the result {path} is {found}, was {was}")


def _differences(one, other, path=""):
    """Yield the differences between two JSON objects: path and both values."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for position, each in enumerate(one):
            yield from _differences(each, other[position], f"{path}/{position}")
    elif repr(one) != repr(other):  # repr: NaN equals NaN
        yield path, one, other


class _History:
    """One history; each kill starts another server process."""

    def __init__(self, script, kills, folder, story):
        self.script = script
        self.folder = folder
        self.story = story
        arrays = initial_arrays(script.seed)
        self.start = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        self.world = World(script, kills)
        self.watch = Watch(script, arrays)
        self._saved = 0  # the last round that must have a checkpoint
        self._strategy = None

    def run(self):
        """Play the history to its end."""
        while True:
            try:
                self._process()
            except KilledError:
                self._die(self.world.killed)
            else:
                self.watch.run_is_over(self.script.num_rounds)
                return self.watch

    def _process(self):
        """Run a server process until it finishes or is killed."""
        options = {
            "checkpoints": None if self.folder is None else Checkpoints(self.folder, resume=True),
            "on_round": self._on_round,
        }
        if self._saved:
            options["num_rounds"] = None  # a resumed run keeps its horizon
        self._strategy = self.script.strategy(**options)
        result = self._strategy.start(
            self.world, self.start, num_rounds=self.script.num_rounds, evaluate_fn=self._evaluate
        )
        rounds = range(self.script.num_rounds + 1)
        evaluated = sorted(result.evaluate_metrics_serverapp)
        if evaluated != list(rounds):
            raise BrokenError(f"results hold the evaluations of rounds {evaluated}")
        moved = [number for number, record in sorted(self.watch.records.items()) if not record.skipped]
        measured = sorted(result.train_metrics_clientapp)
        if measured != moved:
            raise BrokenError(f"results hold the metrics of rounds {measured}, the model moved in {moved}")
        final = self.watch.models[self.script.num_rounds]
        for name, array in (result.arrays or {}).items():
            if array.numpy().tobytes() != final[name].tobytes():
                raise BrokenError(f"the result's {name} is not the last")
        if not result.arrays:
            raise BrokenError("the result has no model")

    def _die(self, kill):
        self.story.append(f"  the server is killed in round {kill.round}: {kill.moment}")
        if self.folder is None:
            return
        if kill.moment == "saving":
            unfinished = self.folder / f"round-{kill.round:08d}.npz.unfinished"
            unfinished.write_bytes(b"PK" * int(100 * kill.share))
        if kill.moment == "torn" and self._saved > 1:
            _damage(self.folder / f"round-{self._saved:08d}.npz", kill.share)
            self._saved -= 1
        self.watch.resumed(self._saved)
        self.world.resume(self._saved + 1)

    def _on_round(self, record):
        assert self._strategy is not None
        self.story += _told(record, self._strategy)
        self.watch.round_is_over(record, self._strategy, self.world)
        self.world.kill("aggregated", record.round)

    def _evaluate(self, number, arrays):
        model = {name: array.numpy() for name, array in arrays.items()}
        self.watch.model_is(number, model, self.world)
        self.world.kill("saving", number)
        self.world.clock.sleep(self.script.between_rounds)
        self.world.round = number + 1
        self._saved = number
        return MetricRecord({"sum": float(sum(array.sum(dtype=np.float64) for array in model.values()))})


def _damage(file, share):
    """Truncate a file or corrupt a part of it."""
    content = bytearray(file.read_bytes())
    at = int(share * len(content))
    if share < 0.5:
        del content[at:]
    else:
        content[at : at + 128] = bytes(byte ^ 0xFF for byte in content[at : at + 128])
    file.write_bytes(content)


def _told(record, strategy):
    """Return a record as text."""
    name, selection = strategy.roster.id_of, record.selection
    chosen = ", ".join(
        f"{name(int(client))}{f' x{count}' if count > 1 else ''} {weight:.4g}"
        for client, count, weight in zip(selection.clients, selection.counts, record.weights, strict=True)
    )
    lines = [f"  round {record.round}: {record.num_available} available; weights: {chosen or 'nobody'}"]
    lines += [f"    failed: {name(client)}: {reason}" for client, reason in record.failures.items()]
    lines += [f"    clipped: {name(client)}: {what}" for client, what in record.clipped.items()]
    lines += [f"    quarantined: {', '.join(map(name, record.quarantined))}"] if record.quarantined else []
    lines += [f"    skipped: {record.skipped}"] if record.skipped else []
    return lines


@contextmanager
def _quiet():
    """Silence Flower's log, and exclude existing objects from garbage collection, which is costly."""
    before = FLOWER_LOGGER.level
    FLOWER_LOGGER.setLevel(logging.CRITICAL + 1)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        FLOWER_LOGGER.setLevel(before)


@contextmanager
def _folder():
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
        yield Path(folder)
