"""Reading the histories that the ServerApp writes (see server/history.py), also while they are written."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "history.jsonl"
Line = dict[str, Any]


@dataclass
class TrialHistory:
    """What the history says so far of one trial: one training of the federation with one selector.

    Lines of unknown types are skipped, so that histories may gain new ones.
    """

    path: Path
    """The history file; its folder is named after the trial."""
    settings: Line = field(default_factory=dict)
    """The run's settings."""
    client_ids: list[str] = field(default_factory=list)
    """(M,) durable ids, by client index."""
    client_sizes: list[float] = field(default_factory=list)
    """(M,) samples held."""
    rounds: list[Line] = field(default_factory=list)
    """The rounds, from round 0 (the model before training) on."""
    end: Line | None = None
    """The last line, once the run has ended; None again when the run is resumed."""
    starts: int = 0
    """How often the run was started or resumed."""
    _offset: int = 0  # bytes read
    _file: int | None = None  # inode of the file that these bytes came from

    @property
    def label(self) -> str:
        """The selector's name and the settings that were given."""
        if not self.settings:
            return self.path.parent.name
        given = self.settings["selector_settings"]
        return f"{self.settings['selector']} ({given})" if given else str(self.settings["selector"])

    @property
    def trained(self) -> list[Line]:
        """All rounds but round 0."""
        return [line for line in self.rounds if line["round"] > 0]

    @property
    def finished(self) -> bool:
        """Whether the run reached its planned end."""
        return self.end is not None and self.end["type"] == "end"

    def read(self) -> list[Line]:
        """Return the lines written since the last call.

        A last line without a newline is still being written and is left for the next call. A resumed run
        replaces its history file: the new file is read from the start, and the lines since the resume are
        returned.

        Raises
        ------
        ValueError
            If a complete line is not a valid history line.
        """
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            now = os.fstat(file.fileno()).st_ino
            replaced = self._file not in (None, now)
            if replaced:
                vars(self).update(vars(TrialHistory(self.path)))
            self._file = now
            file.seek(self._offset)
            written = file.read()
        complete = written[: written.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = []
        for text in complete.splitlines():
            try:
                line = json.loads(text)
                self._take(line)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}: not a line of a history: {text[:80]!r}") from error
            lines.append(line)
        if replaced:
            since = max((at for at, line in enumerate(lines) if line["type"] == "resume"), default=0)
            return lines[since:]
        return lines

    def _take(self, line: Line) -> None:
        match line["type"]:
            case "run":
                self.settings = line
                self.starts += 1
            case "resume":
                self.settings = {**self.settings, "num_rounds": line["num_rounds"]}
                self.rounds = [each for each in self.rounds if each["round"] <= line["round"]]
                self.end = None
                self.starts += 1
            case "roster":
                self.client_ids, self.client_sizes = line["client_ids"], line["client_sizes"]
            case "round":
                self.rounds.append(line)
            case "end" | "error":
                self.end = line


def read_run(folder: Path) -> list[TrialHistory]:
    """Read all histories below a run's folder, in the order in which the trials started.

    Raises
    ------
    ValueError
        If there is no history, or one is damaged.
    """
    trials = [TrialHistory(path) for path in sorted(folder.glob(f"*/{FILE_NAME}"))]
    if not trials:
        raise ValueError(
            f"{folder}: holds no history (*/{FILE_NAME}); it must be the folder of a `cohort up`"
        )
    for trial in trials:
        trial.read()
    return sorted(trials, key=lambda trial: str(trial.settings.get("started")))
