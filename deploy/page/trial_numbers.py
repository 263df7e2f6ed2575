"""What the page shows of one trial: numbers and notable events, taken from the history's lines one by one."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.page.series import ClientCounts, Series
from server.history import Line
from strategies.clients.printable import counted

ROUNDS_KEPT = 200  # the rounds whose timeline can be shown: the last ones
TIMES_KEPT = 40  # the clients of such a round whose times are kept: the slowest
GROUPS_KEPT = 100  # the most groups whose metrics are kept: clients choose the names of groups
NOTES_KEPT = 200  # the most events that are listed
PER_ROUND = ("test_loss", "test_accuracy", "train_loss", "seconds", "num_available")


class TrialNumbers:
    """The numbers of a trial, in memory that does not grow with the rounds.

    `settings`: the line ``run`` of the history. `version`: a number that changes with each line.
    `client_ids`, `client_sizes`, `used_sizes`, `client_groups`: for each of the M clients: its identity, its
    number of samples, the number that the server uses, and the name of its group or None. `series`: numbers
    over the rounds, from round 0 on: those of `PER_ROUND`, and ``selected``, ``failed``, ``clipped`` and
    ``quarantined``, each a number of clients. `draws`, `missed`: for each client, over the rounds: how often
    the client was drawn, and how often it was selected but sent no usable reply.
    """

    def __init__(self) -> None:
        self.settings: Line = {}
        self.version = 0
        self.starts = 0
        self.end: Line | None = None
        self.round = -1  # the last round; -1 before round 0
        self.last: Line = {}  # the last numbers of `PER_ROUND`
        self.client_ids: list[str] = []
        self.client_sizes = np.empty(0)
        self.used_sizes = np.empty(0)
        self._own_sizes = np.empty(0)  # NaN: the used size is the mean of the others
        self.client_groups: list[str | None] = []
        self.series = {
            name: Series() for name in (*PER_ROUND, "selected", "failed", "clipped", "quarantined")
        }
        self.group_series: dict[str, dict[str, Series]] = {}
        self.group_last: dict[str, dict[str, float | None]] = {}
        self.draws, self.missed = ClientCounts(), ClientCounts()
        # Arrays (M,) over the clients. `counts`: how often a client was drawn, and in how many rounds it was
        # selected, its reply was used, its reply was missing or unusable, a value was clipped, or it was
        # quarantined. `seen`: the last known value of each number.
        self.counts = {
            name: np.zeros(0, dtype=np.int64)
            for name in ("drawn", "selected", "used", "failed", "clipped", "quarantined")
        }
        self.seen = {
            name: np.empty(0)
            for name in ("probability", "importance", "round", "answered", "reply", "training", "battery")
        }
        self.failures: dict[int, str] = {}  # why a client's last missing or unusable reply was not used
        self.absent: frozenset[int] | None = None  # clients not selectable in the last round; None: not known
        self.quarantined: frozenset[str] = frozenset()  # ids of clients quarantined in the last round
        self.silent: frozenset[str] = frozenset()
        self.in_flight: frozenset[str] = frozenset()  # ids of clients in flight after the last round
        self.rounds: deque[dict[str, Any]] = deque(maxlen=ROUNDS_KEPT)
        self.notes: deque[dict[str, Any]] = deque(maxlen=NOTES_KEPT)
        self._index: dict[str, int] = {}

    @property
    def label(self) -> str:
        """The name of the trial in tables: the selector, with its settings if some were given."""
        given = self.settings.get("selector_settings")
        name = str(self.settings.get("selector", ""))
        return f"{name} ({given})" if given else name

    def take(self, line: Line) -> None:
        """Enter a line of the history. A line that cannot be understood is left out."""
        self.version += 1
        try:
            self._take(line)
        except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError):
            self.notes.append({"round": self.round, "kind": "damaged", "text": "a line could not be read"})

    def _take(self, line: Line) -> None:
        match line["type"]:
            case "run":
                self.settings, self.starts = line, self.starts + 1
            case "resume":
                self.settings = {**self.settings, "num_rounds": line["num_rounds"]}
                self.end, self.starts = None, self.starts + 1
                self._note(line["round"], "resumed", f"resumed after round {line['round']}")
            case "roster":
                self._register(line)
            case "sizes":
                changed = np.array(line["clients"], dtype=np.int64)
                self.client_sizes[changed] = _sizes(line["client_sizes"])
                self._own_sizes[changed] = np.array(line["used_sizes"], dtype=np.float64)
                self._set_used(line)
            case "round":
                self._round(line)
            case "lost":
                self._note(
                    line.get("last_round"), "lost", f"lost: {counted(line['lines'], 'line')} of the history"
                )
            case "warning":
                self._note(line["round"], "warning", line["reason"])
            case "end" | "error":
                self.end = line
                if line.get("reason"):
                    self._note(self.round, line["type"], line["reason"])

    def _note(self, round: int | None, kind: str, text: str) -> None:
        self.notes.append({"round": round, "kind": kind, "text": str(text)[:1000]})

    def _register(self, line: Line) -> None:
        self.client_ids = list(map(str, line["client_ids"]))
        self.client_sizes = _sizes(line["client_sizes"])
        self._own_sizes = np.array(line["used_sizes"], dtype=np.float64)
        self._set_used(line)
        groups = line.get("client_groups") or [None] * len(self.client_ids)
        self.client_groups = [None if group is None else str(group) for group in groups]
        self._index = {name: at for at, name in enumerate(self.client_ids)}
        missing = len(self.client_ids) - len(self.counts["drawn"])
        for name, counts in self.counts.items():
            self.counts[name] = np.concatenate([counts, np.zeros(missing, dtype=np.int64)])
        for name, values in self.seen.items():
            self.seen[name] = np.concatenate([values, np.full(missing, np.nan)])
        for matrix in (self.draws, self.missed):
            matrix.resize(len(self.client_ids))

    def _set_used(self, line: Line) -> None:
        mean = _number(line.get("mean_size"))
        self.used_sizes = np.where(
            np.isnan(self._own_sizes), math.nan if mean is None else mean, self._own_sizes
        )

    def _round(self, line: Line) -> None:
        number = line["round"]
        if not isinstance(number, int) or number < 0:
            raise TypeError("round")
        self.round = number
        numbers = {}
        for name in PER_ROUND:
            # After a round without an evaluation, the page shows the numbers of the last evaluation.
            kept = self.last.get(name) if name.startswith("test_") and name not in line else None
            numbers[name] = _number(line.get(name)) if kept is None else kept
            self.series[name].add(number, numbers[name])
        self.last = numbers
        self._groups(number, line.get("group_metrics") or {})
        if number == 0:
            return
        clients, counts = (np.array(line[name], dtype=np.int64) for name in ("clients", "counts"))
        used = np.array(line["responded"], dtype=np.bool_)
        failed, clipped = line.get("failures") or [], line.get("clipped") or []
        quarantined = line.get("quarantined") or []
        for name, many in (("failed", failed), ("clipped", clipped), ("quarantined", quarantined)):
            self.series[name].add(number, len(many))
        self.series["selected"].add(number, len(clients))
        self.draws.add(number - 1, clients, counts)
        self.missed.add(number - 1, clients, (~used).astype(np.int64))
        np.add.at(self.counts["drawn"], clients, counts)
        np.add.at(self.counts["selected"], clients, 1)
        np.add.at(self.counts["used"], clients, used)
        self.seen["round"][clients] = number
        self.seen["answered"][clients[used]] = number
        for name, key in (
            ("probability", "probabilities"),
            ("importance", "importance"),
            ("reply", "reply_seconds"),
            ("training", "training_seconds"),
            ("battery", "batteries"),
        ):
            values = _aligned(line.get(key), len(clients))
            known = np.isfinite(values)
            self.seen[name][clients[known]] = values[known]
        for each in failed:
            client = self._index[each["client"]]
            self.counts["failed"][client] += 1
            self.failures[client] = str(each["reason"])
        for each in clipped:
            self.counts["clipped"][self._index[each["client"]]] += 1
        for each in quarantined:
            self.counts["quarantined"][self._index[each]] += 1
        absent = line.get("absent")
        self.absent = None if absent is None else frozenset(absent)
        self.quarantined, self.silent = frozenset(quarantined), frozenset(line.get("silent") or ())
        self.in_flight = frozenset(line.get("in_flight") or ())
        if line.get("skipped"):
            self._note(number, "skipped", line["skipped"])
        self.rounds.append(self._times(line, clients, counts, used))

    def _times(
        self, line: Line, clients: NDArray[np.int64], counts: NDArray[np.int64], used: NDArray[np.bool_]
    ) -> dict[str, Any]:
        """Return the timeline of a round, with the slowest `TIMES_KEPT` clients."""
        reply = _aligned(line.get("reply_seconds"), len(clients))
        training = _aligned(line.get("training_seconds"), len(clients))
        reasons = {each["client"]: each["reason"] for each in line.get("failures") or []}
        # Clients without a reply come first: the round waited for them.
        slowest = np.argsort(-np.where(np.isnan(reply), np.inf, reply), kind="stable")[:TIMES_KEPT]
        return {
            "round": line["round"],
            "seconds": _number(line.get("seconds")),
            "phases": {str(part): _number(value) for part, value in (line.get("phases") or {}).items()},
            "selected": len(clients),
            "used": int(used.sum()),
            "available": line.get("num_available"),
            "skipped": line.get("skipped") or "",
            "eligible": str(line.get("eligible") or ""),
            "ineligible": line.get("num_ineligible") or 0,
            "in_flight": len(line.get("in_flight") or ()),
            "clients": [
                {
                    "client": line["client_ids"][at],
                    "draws": int(counts[at]),
                    "used": bool(used[at]),
                    "reply": _number(reply[at]),
                    "training": _number(training[at]),
                    "reason": reasons.get(line["client_ids"][at], ""),
                }
                for at in slowest.tolist()
            ],
        }

    def _groups(self, number: int, metrics: Mapping[str, Mapping[str, Any]]) -> None:
        for group, values in metrics.items():
            if group not in self.group_series:
                if len(self.group_series) >= GROUPS_KEPT:
                    continue
                self.group_series[group] = {"loss": Series(256), "accuracy": Series(256)}
            found = {name: _number(values.get(name)) for name in ("loss", "accuracy")}
            for name, value in found.items():
                self.group_series[group][name].add(number, value)
            self.group_last[group] = found


def _aligned(values: Sequence[float | None] | None, count: int) -> NDArray[np.float64]:
    """Return one number per client as an array, with NaN for each missing number."""
    if not values or len(values) != count:
        return np.full(count, np.nan)
    return np.array(values, dtype=np.float64)


def _sizes(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Return the clients' numbers of samples; 0 for a number that is not known, as in `RunHistory`."""
    return np.nan_to_num(np.array(values, dtype=np.float64))


def _number(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
