"""Follows a run from outside: when each line of its history appeared, and the model of each checkpoint."""

import contextlib
import json
import threading
import time
import zipfile

import numpy as np

LOOK = 0.1  # s
MODEL = "arrays/model/"  # prefix of the model's arrays in a checkpoint


class Watch:
    """Reads a run's folder all the time, in a thread.

    Parameters
    ----------
    run : Path
        The folder, which may not exist yet.

    Attributes
    ----------
    rounds : dict
        By round: its line as last seen, with "at", the time.time() at which it was seen first.
    models : dict
        By round: the model of its checkpoint, of those that were seen.
    violations : list of str
        What no history may do: lose more than its last round, or change a round that a checkpoint holds.
    """

    def __init__(self, run):
        self.rounds = {}
        self.models = {}
        self.resumes = 0
        self.violations = []
        self._run = run
        self._read = set()  # checkpoints
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self):
        """Read everything once more, and stop."""
        self._over.set()
        self._thread.join()

    def rounds_since(self, at):
        """Return the rounds that were completed, and not skipped, after a time.time()."""
        found = [line for line in list(self.rounds.values()) if line["at"] > at and not line.get("skipped")]
        return sorted(found, key=lambda line: float(line["at"]))

    def _watch(self):
        while True:
            last = self._over.is_set()
            with contextlib.suppress(FileNotFoundError):
                self._read_history()
                self._read_checkpoints()
            if last:
                return
            time.sleep(LOOK)

    def _read_history(self):
        text = (self._run / "history.jsonl").read_bytes()
        lines = [json.loads(line) for line in text.split(b"\n")[:-1]]
        resumes = [line["round"] for line in lines if line["type"] == "resume"]
        rounds = {line["round"]: line for line in lines if line["type"] == "round"}
        if len(resumes) > self.resumes:
            for kept in resumes[self.resumes :]:
                reached = max(self.rounds, default=0)
                if kept < reached - 1:
                    self.violations.append(f"round {reached} was reached, the run resumed after round {kept}")
                for number in [number for number in self.rounds if number > kept]:
                    del self.rounds[number]
                    self.models.pop(number, None)
            self.resumes = len(resumes)
        now = time.time()
        for number, line in rounds.items():
            before = self.rounds.get(number)
            if before is None:
                self.rounds[number] = {**line, "at": now}
            elif {**line, "at": before["at"]} != before:
                self.violations.append(f"round {number} was rewritten without a resume")
        for number in self.rounds.keys() - rounds.keys():
            self.violations.append(f"round {number} has vanished from the history")
            del self.rounds[number]

    def _read_checkpoints(self):
        for path in (self._run / "checkpoints").glob("round-*.npz"):
            with contextlib.suppress(OSError, zipfile.BadZipFile):  # it has just been replaced
                key = path.name, path.stat().st_mtime_ns
                if key in self._read:
                    continue
                with np.load(path) as arrays:
                    names = [name for name in arrays.files if name.startswith(MODEL)]
                    model = {name.removeprefix(MODEL): arrays[name] for name in names}
                self._read.add(key)
                self.models[int(path.stem.removeprefix("round-"))] = model
