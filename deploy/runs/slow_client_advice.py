"""Advice about slow clients: reads the durations in a run's history, and suggests settings that help."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from server.history import Line, RunHistory
from strategies.advice import Waiting, waiting
from strategies.numerics.arrays import Floats, Ints
from strategies.options import Buffered, Faults
from strategies.selectors import selector_type
from strategies.server_steps.compatibility import check_buffered

FEWEST = 20  # there is no advice from fewer durations
IDLE, MISSING, STALE = 0.2, 0.1, 0.01
"""A change is advised from these shares on. `IDLE` is a share of a round's wait (`Waiting.idle`), `MISSING`
the share of selected clients without a duration (`Waiting.missing`), `STALE` the share of updates that were
rejected as too stale."""
TIMED = ("forecast", "md")
"""The selectors X for which a selector timed-X exists, which takes durations into account."""


class SlowClients(NamedTuple):
    """Facts and advice about the slow clients of a run (docs/slow-clients.md).

    `buffered`: whether the run's rounds are buffered. Then no round waits for the clients that it selected,
    so ``waiting.idle`` and ``waiting.missing`` mean nothing. `sentences`: the advice: the settings to turn on
    or to change.
    """

    waiting: Waiting
    buffered: bool
    sentences: tuple[str, ...]

    def text(self) -> str:
        """Return the facts and the advice as text for the terminal."""
        head = (
            f"Slow clients: of {self.waiting.replies:,} durations, the standard deviation of log seconds is "
            f"{self.waiting.between:.2f} between clients and {self.waiting.within:.2f} from round to round."
        )
        return " ".join([head, *self.sentences])

    def numbers(self) -> dict[str, float | list[str]]:
        """Return the facts (those fields of `Waiting` that mean something) and "advice", as a JSON object."""
        left_out = {"idle", "missing"} if self.buffered else set()
        fields = {name: each for name, each in self.waiting._asdict().items() if name not in left_out}
        return {**fields, "advice": list(self.sentences)}


def slow_clients(path: Path) -> SlowClients | None:
    """Return the facts and the advice; None if the history has fewer than `FEWEST` durations."""
    history = RunHistory(path)
    lines = [line for line in history.read(skip_damaged=True) if line["type"] == "round" and line["round"]]
    found = waiting(_durations(lines))
    if found is None or found.replies < FEWEST:
        return None
    settings = history.settings
    if not {"selector", "clients_per_round"} <= settings.keys():
        raise ValueError(f"{path}: its first line does not name the selector and the clients per round")
    buffered = settings.get("mode") == "buffered"
    sentences = _buffered(lines, settings) if buffered else _rounds(found, settings)
    return SlowClients(found, buffered, tuple(sentences))


def _durations(lines: list[Line]) -> Iterator[tuple[Ints, Floats]]:
    for line in lines:
        seconds = line.get("reply_seconds") or []
        if seconds and len(seconds) == len(line.get("clients", ())):
            yield np.array(line["clients"], dtype=np.int64), np.array(seconds, dtype=np.float64)


def _rounds(durations: Waiting, settings: Line) -> list[str]:
    """Return advice for a run whose rounds wait for their clients."""
    found = []
    idle, missing = durations.idle, durations.missing
    name, k = str(settings["selector"]), int(settings["clients_per_round"])
    if idle >= IDLE:
        found.append(f"On average, {idle:.0%} of a round's wait is left when a client's reply arrives.")
        refusal = _refusal(name, k)
        if refusal:
            found.append(f"Buffered rounds would end this wait, but {refusal}.")
        else:
            found.append(f"Buffered rounds end this wait: --set mode=buffered --set concurrency={max(k, 2)}.")
        if durations.within > durations.between:
            found.append(
                "The slow clients differ from round to round, so over-selection shortens rounds with little "
                "bias: --set over-selection=1.3 --set correction=rates."
            )
        elif name in TIMED:
            found.append(f"With rounds that wait, --selector timed-{name} draws slow clients less often.")
    if missing >= MISSING:
        found.append(
            f"{missing:.0%} of the selected clients had no reply in time. With a lower round-deadline, "
            "rounds wait less for them."
        )
    return found or [f"Rounds wait little for slow clients ({idle:.0%} of the wait): nothing to turn on."]


def _refusal(name: str, k: int) -> str:
    """Return why a run with this selector cannot have buffered rounds, "" if it can."""
    try:
        check_buffered(Buffered(concurrency=max(k, 2)), selector_type(name), {}, None, Faults(), size=k)
    except ValueError as error:
        return str(error)
    return ""


def _buffered(lines: list[Line], settings: Line) -> list[str]:
    """Return advice for a run whose rounds are buffered."""
    asked = [line for line in lines if line.get("staleness")]
    arrivals = sum(len(line["clients"]) for line in asked)
    stale = sum(int(line.get("num_stale", 0)) for line in asked)
    taus = np.concatenate([np.array(line["staleness"], dtype=np.float64) for line in asked] or [np.zeros(1)])
    found = [f"Updates are {taus.mean():.1f} rounds stale on average, and {taus.max():.0f} at most."]
    if stale > STALE * arrivals > 0:
        found.append(
            f"{stale / arrivals:.0%} of the updates were rejected as too stale, which takes weight from slow "
            f"clients: raise max-staleness (now {settings.get('max_staleness')})."
        )
    power = float(settings.get("staleness_power") or 0)
    if power:
        least = float((1 + np.quantile(taus, 0.75)) ** -power)
        found.append(
            f"staleness-power = {power:g} takes weight from slow clients: a quarter of the updates count "
            f"{least:.2f} or less. --set staleness-power=0 is unbiased."
        )
    if settings.get("count_busy") is False:
        found.append("count-busy = false is biased towards fast clients: --set count-busy=true is not.")
    return found if len(found) > 1 else [*found, "Nothing to change."]
