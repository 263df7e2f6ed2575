"""Reads the whole history of a run and keeps its rounds, for tables, figures and advice."""

import os
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path

from flwr.common import log

from strategies.reporters.round_line import printable_line

from .parsing import FILE_NAME, TOLD_TO_END, Line, VersionError, parsed

# The damaged lines of which this process has warned. A command may read the same history several times.
_WARNED_OF: set[str] = set()


@dataclass
class RunHistory:
    """The content of a history so far. The history can be read while the run goes on."""

    path: Path  # the file; its folder is named after the run
    settings: Line = field(default_factory=dict)  # of the run
    client_ids: list[str] = field(default_factory=list)  # (M,) identities in the order of the indexes
    client_sizes: list[float] = field(default_factory=list)  # (M,) claimed samples; 0 without a claim
    client_groups: list[str | None] = field(default_factory=list)  # (M,) names; None without a group
    _used_sizes: list[float | None] = field(default_factory=list)  # None: `_mean_size`
    _mean_size: float | None = None
    rounds: list[Line] = field(default_factory=list)  # from round 0 (the model before training) on
    end: Line | None = None  # the last line of a run that finished, failed or was stopped; not after a resume
    starts: int = 0  # how many times the run was started or resumed
    _offset: int = 0  # bytes read
    _lines: int = 0  # lines read
    _file: int | None = None  # inode of the file that was read last

    @property
    def label(self) -> str:
        """The name of the run in tables: the selector, with its settings if some were given."""
        if not self.settings:
            return self.path.parent.name
        name, given = self.settings.get("selector", "?"), self.settings.get("selector_settings")
        return f"{name} ({given})" if given else name

    @property
    def used_sizes(self) -> list[float | None]:
        """(M,) the data sizes that the server uses; None where no size is known."""
        return [self._mean_size if size is None else size for size in self._used_sizes]

    @property
    def trained(self) -> list[Line]:
        """The rounds in which clients trained: all but round 0."""
        return [line for line in self.rounds if line["round"] > 0]

    @property
    def finished(self) -> bool:
        """Whether the run ended by itself, for example after its last round or at its target accuracy."""
        return self.end is not None and self.end["type"] == "end"

    @property
    def stopped(self) -> bool:
        """Whether somebody told the run to end: its last line is ``error`` with the reason `TOLD_TO_END`."""
        return self.end is not None and self.end.get("reason") == TOLD_TO_END

    def read(self, *, skip_damaged: bool = False) -> list[Line]:
        """Read the lines that were written since the last call and return them.

        If the last line has no newline yet, it is still being written, and the next call reads it. A resume
        replaces the file of the run. The next call then reads the whole new file, and returns the lines from
        the last ``resume`` line on.

        A line is damaged if it is complete, but not a JSON object of the known form (see `field_checks`), or
        if it contradicts earlier lines. With ``skip_damaged``, damaged lines are left out, with one warning
        in this process.

        Raises
        ------
        ValueError
            If a line is damaged and ``skip_damaged`` is False, or if the history is of another version. The
            message names the file and the number of the line. The next call continues after this line.
        """
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            now = os.fstat(file.fileno()).st_ino
            replaced = self._file not in (None, now)
            if replaced:
                vars(self).update(vars(RunHistory(self.path)))
            self._file = now
            file.seek(self._offset)
            written = file.read()
        complete = written[: written.rfind(b"\n") + 1]
        lines, problems = [], []
        for text in complete.split(b"\n")[:-1]:
            self._offset += len(text) + 1
            self._lines += 1
            try:
                line = parsed(self.path, text)
                if b"\\" in text:
                    line = printable_line(line)
                self._take(line)
            except VersionError:
                raise
            except ValueError as error:
                problem = f"{self.path}, line {self._lines}: not a line of a history: {error}: {text[:80]!r}"
                if not skip_damaged:
                    raise ValueError(problem) from error
                problems.append(problem)
                continue
            lines.append(line)
        if problems and problems[0] not in _WARNED_OF:
            _WARNED_OF.add(problems[0])
            more = f" ({len(problems) - 1} more like this)" if len(problems) > 1 else ""
            log(WARNING, "%s; the line is left out%s", problems[0], more)
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
                # If a roster is shorter than the one before, the clients beyond its end stay known, since
                # earlier rounds may have selected them.
                count = len(line["client_ids"])
                self.client_ids = line["client_ids"] + self.client_ids[count:]
                self.client_groups = line["client_groups"] + self.client_groups[count:]
                self.client_sizes = [*map(_size, line["client_sizes"]), *self.client_sizes[count:]]
                self._used_sizes = line["used_sizes"] + self._used_sizes[count:]
                self._mean_size = line.get("mean_size")
            case "sizes":
                self._check_clients(line)
                if not self.client_ids:
                    raise ValueError("there is no roster yet")
                sizes = zip(line["clients"], line["client_sizes"], line["used_sizes"], strict=True)
                for client, size, used in sizes:
                    self.client_sizes[client], self._used_sizes[client] = _size(size), used
                self._mean_size = line.get("mean_size")
            case "round":
                self._check_clients(line)
                if self.rounds and line["round"] < self.rounds[-1]["round"]:
                    raise ValueError(f"round {line['round']} follows round {self.rounds[-1]['round']}")
                self.rounds.append(line)
            case "end" | "error":
                self.end = line

    def _check_clients(self, line: Line) -> None:
        if self.client_ids and max(line.get("clients", ()), default=-1) >= len(self.client_ids):
            raise ValueError(
                f"clients holds the index {max(line['clients'])}, but {len(self.client_ids)} clients "
                "are known"
            )


def no_history(folder: Path) -> str:
    """Return the message for a folder without a history. For a sweep's folder, the message names a trial."""
    message = (
        f"{folder}: holds no history ({FILE_NAME}); must be the folder of a run, a trial or a comparison"
    )
    of_sweep = next(folder.glob(f"trials/*/{FILE_NAME}"), None)
    return f"{message}; of a sweep, name a trial, such as {of_sweep.parent}" if of_sweep else message


def read_run(folder: Path) -> list[RunHistory]:
    """Read the history of a run or trial, or all of a comparison, in the order in which the runs began.

    Raises
    ------
    ValueError
        If the folder holds no history, or if a history is of another version.
    """
    own = folder / FILE_NAME
    runs = [RunHistory(path) for path in ([own] if own.exists() else sorted(folder.glob(f"*/{FILE_NAME}")))]
    if not runs:
        raise ValueError(no_history(folder))
    for run in runs:
        run.read(skip_damaged=True)
    return sorted(runs, key=lambda run: str(run.settings.get("started")))


def _size(value: float | None) -> float:
    """Return the samples that a client holds; 0 if the number is not known."""
    return 0.0 if value is None else max(0.0, value)
