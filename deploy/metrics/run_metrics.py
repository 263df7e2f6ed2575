"""Follows the histories of runs, and turns their lines into samples."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.metrics.exposition import Sample
from deploy.runs.run_state import STATES, state_of
from server.history import FILE_NAME, Line, Tail
from server.settings import CHECKPOINTS

MOST_RUNS = 20  # runs that have samples: those whose histories were written last
MOST_GROUPS = 50  # groups of a run that have samples; clients choose the names of groups
PARTS = 8  # the most reads of one history in a step, so that a long history does not hold up the others
PHASES = ("poll", "train", "aggregate")
_COUNTERS = (
    "cohort_run_starts_total",
    "cohort_rounds_total",
    "cohort_skipped_rounds_total",
    "cohort_round_seconds_total",
    "cohort_selected_clients_total",
    "cohort_failed_clients_total",
    "cohort_clipped_clients_total",
    "cohort_sent_messages_total",
    "cohort_sent_bytes_total",
    "cohort_received_messages_total",
    "cohort_received_bytes_total",
)


class Runs:
    """The runs below a folder.

    A run's name is the path of the run's folder, relative to `folder`. Of the histories that exist at the
    first `step`, the newest has samples at once, and each other one has samples once a line is added to it.
    The counters of all these histories begin with 0.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[Path, _Run] = {}
        self._old: dict[Path, int] = {}  # histories without samples, and when they were written (ns)
        self._has_begun = False
        self._unreadable = 0

    def step(self) -> None:
        """Read what was added to the histories since the last call."""
        written = _histories(self._folder)
        if not self._has_begun:
            newest = max(written, key=written.__getitem__, default=None)
            self._old = {path: when for path, when in written.items() if path != newest}
        changed = {path: when for path, when in written.items() if self._old.get(path) != when}
        shown = sorted(changed, key=changed.__getitem__)[-MOST_RUNS:]
        for path in shown:
            if path not in self._runs:
                name = str(path.parent.relative_to(self._folder))
                # Only new lines of an old history count; all lines of a history that has just begun count.
                is_old = not self._has_begun or path in self._old
                self._runs[path] = _Run(name, path, counts=not is_old)
        self._runs = {path: self._runs[path] for path in shown}
        self._unreadable = 0
        for run in self._runs.values():
            try:
                run.step()
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                self._unreadable += 1
        self._has_begun = True

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all runs."""
        yield Sample("cohort_unreadable_histories", self._unreadable)
        for run in self._runs.values():
            yield from run.samples()


def _histories(folder: Path) -> dict[Path, int]:
    """Return when each history below a folder was last written, in ns since 1970."""
    found = {}
    for pattern in (f"*/{FILE_NAME}", f"*/*/{FILE_NAME}"):
        for path in folder.glob(pattern):
            with contextlib.suppress(OSError):  # removed meanwhile
                found[path] = path.stat().st_mtime_ns
    return found


class _Run:
    """The numbers of one run."""

    def __init__(self, name: str, path: Path, *, counts: bool) -> None:
        self._name, self._path = name, path
        self._tail = Tail(path)
        self._counts = counts
        self._counters = dict.fromkeys(_COUNTERS, 0.0)
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._settings: Line = {}
        self._last: Line = {}
        self._end: Line | None = None
        self._clients = 0
        self._round = 0
        # A resume replaces the file, and then all its lines are read again. Lines that were counted before do
        # not count again. `_starts` is the number of starts and resumes counted so far, and `_counted` is the
        # last round counted. A start is new if the file has more than `_starts` starts up to it. A round is
        # new if it follows a new start, or if its number is above `_counted`.
        self._starts, self._counted = 0, -1
        self._start, self._is_new = 0, False  # how many starts were read; whether the last of them is new

    def step(self) -> None:
        for _ in range(PARTS):
            lines = self._tail.read()
            for line in lines:
                self._take(line)
            if not lines:
                self._counts = True  # the lines that were there at the beginning have been read
                return

    def _take(self, line: Line) -> None:
        match line["type"]:
            case "run":
                self._settings, self._start, self._is_new = line, 0, False
                self._begin()
            case "resume":
                self._settings = {**self._settings, "num_rounds": line["num_rounds"]}
                self._round = line["round"]
                self._begin()
            case "roster":
                self._clients = len(line["client_ids"])
            case "round":
                self._last, self._round = line, line["round"]
                if self._is_new or self._round > self._counted:
                    self._counted = self._round
                    if self._counts and self._round > 0:
                        self._count(line)
            case "end" | "error":
                self._end = line

    def _begin(self) -> None:
        self._end = None
        self._start += 1
        if self._start > self._starts:
            self._starts, self._is_new = self._start, True
            self._counters["cohort_run_starts_total"] += self._counts

    def _count(self, line: Line) -> None:
        def add(metric: str, value: Any) -> None:
            number = float(value or 0)  # null stands for a number that is not finite
            self._counters[metric] += number if math.isfinite(number) else 0

        add("cohort_rounds_total", 1)
        add("cohort_skipped_rounds_total", bool(line.get("skipped")))
        add("cohort_round_seconds_total", line.get("seconds"))
        add("cohort_selected_clients_total", len(line.get("clients", ())))
        add("cohort_failed_clients_total", len(line.get("failures", ())))
        add("cohort_clipped_clients_total", len(line.get("clipped", ())))
        for way in ("sent", "received"):
            add(f"cohort_{way}_messages_total", line.get(f"messages_{way}"))
            add(f"cohort_{way}_bytes_total", line.get(f"bytes_{way}"))
        for phase in PHASES:
            self._phases[phase] += float(line.get("phases", {}).get(phase) or 0)

    def samples(self) -> Iterator[Sample]:
        if not self._settings:
            return
        run, settings, last = (self._name,), self._settings, self._last
        described = [settings.get(name, "") for name in ("selector", "task", "seed")]
        yield Sample("cohort_run_info", 1, (*run, *described))
        state = state_of(self._end, self._path.parent)
        for each in STATES:
            yield Sample("cohort_run_state", each == state, (*run, each))
        for metric, value in self._counters.items():
            yield Sample(metric, value, run)
        for phase, value in self._phases.items():
            yield Sample("cohort_phase_seconds_total", value, (*run, phase))
        gauges: dict[str, Any] = {
            "cohort_planned_rounds": settings.get("num_rounds"),
            "cohort_round": self._round,
            "cohort_known_clients": self._clients,
            "cohort_last_round_seconds": last.get("seconds"),
            "cohort_selectable_clients": last.get("num_available"),
            "cohort_train_loss": last.get("train_loss"),
            "cohort_test_loss": last.get("test_loss"),
            "cohort_test_accuracy_ratio": last.get("test_accuracy"),
        }
        for metric, name in (
            ("cohort_quarantined_clients", "quarantined"),
            ("cohort_silent_clients", "silent"),
        ):
            gauges[metric] = len(last[name]) if name in last else None
        for metric, value in gauges.items():
            if value is not None:  # None: unknown, or not finite
                yield Sample(metric, float(value), run)
        yield from self._group_samples(last.get("group_metrics") or {})
        yield from self._times()

    def _group_samples(self, groups: dict[str, dict[str, Any]]) -> Iterator[Sample]:
        # Sorted, so that in each round the same groups have samples.
        for group in sorted(groups)[:MOST_GROUPS]:
            for name, metric in (("loss", "cohort_group_loss"), ("accuracy", "cohort_group_accuracy_ratio")):
                if isinstance(value := groups[group].get(name), int | float):
                    yield Sample(metric, float(value), (self._name, group))
        yield Sample("cohort_left_out_groups", max(0, len(groups) - MOST_GROUPS), (self._name,))

    def _times(self) -> Iterator[Sample]:
        with contextlib.suppress(OSError):
            when = self._path.stat().st_mtime
            yield Sample("cohort_last_round_timestamp_seconds", when, (self._name,))
        with contextlib.suppress(OSError):
            saved = [file.stat().st_mtime for file in (self._path.parent / CHECKPOINTS).glob("round-*.npz")]
            if saved:
                yield Sample("cohort_checkpoint_timestamp_seconds", max(saved), (self._name,))
