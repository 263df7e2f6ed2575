"""Advice about selectors: reads a run's log from its history; makes the table, the JSON and the sentence."""

import json
import re
from collections.abc import Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from deploy.runs.slow_client_advice import SlowClients
from server.history import FILE_NAME, Line, RunHistory, no_history
from server.settings import parse_settings
from strategies.advice import BASELINE, Findings, LoggedRound, check_candidate, check_log, study
from strategies.numerics.arrays import Floats
from strategies.selectors import Selector, create, selector_type, settings_of_run
from strategies.selectors.probability import ProbabilitySelector

NAMES = (
    BASELINE,
    "md",
    "mabs",
    "vrb",
    "avare",
    "prac-is",
    "adaptive-osmd",
    "adaptive-osmd:learning-rate-multiplier=100",
    "forecast",
)
"""The selectors that are studied by default, besides that of the run."""
DIFFERENCE = 1e-3
"""The largest accepted relative difference between a client's importance, which is the weight divided by the
share λ, and the importance that follows from the draws."""
SLOW_CLIENTS = "slow_clients"
"""The key of `as_json` that is not a selector."""
NOTE = (
    "The variance of the aggregate is relative to that of uniform sampling, and is the part that depends on "
    "the selector. exact: the selector's probabilities are known. replayed: an approximation, since the "
    "selector has learned from the draws of the run, not from draws of its own."
)


class RunLog(NamedTuple):
    """The log of a run: what its history says about draws and norms."""

    path: Path  # the history
    settings: Line  # the settings of the run
    rounds: list[LoggedRound]


def find_history(run: Path) -> RunHistory:
    """Read the history of a run or, from a comparison, of the trial that is best suited for a study.

    `run`: the folder of a run, or of a comparison. From a comparison, the first trial of uniform sampling is
    taken, since its draws do not depend on the norms; without such a trial, the first whose log can be
    studied.
    """
    paths = [run / FILE_NAME] if (run / FILE_NAME).exists() else sorted(run.glob(f"*/{FILE_NAME}"))
    if not paths:
        raise ValueError(no_history(run))
    found, problems = [], []
    for path in paths:
        history = RunHistory(path)
        history.read(skip_damaged=True)
        try:
            if not history.settings:
                raise ValueError(f"{path}: its first line, the settings of the run, is missing")
            check_log(history.settings.get("selector", ""))
            found.append(history)
        except ValueError as error:
            text = str(error)
            problems.append(text if str(path) in text else f"{path}: {text}")
    if not found:
        raise ValueError("\n".join(problems))
    return min(found, key=lambda history: history.label != BASELINE)


def read_log(history: RunHistory) -> RunLog:
    """Read the log of a run."""
    try:
        return _read(history.path, history.settings)
    except KeyError as error:
        raise ValueError(f"{history.path}: cannot be studied, since it has no {error}") from None
    except (AttributeError, IndexError, OverflowError, TypeError):
        raise ValueError(
            f"{history.path}: cannot be studied, since its lines contradict each other"
        ) from None
    except ValueError as error:
        text = str(error)
        raise ValueError(text if str(history.path) in text else f"{history.path}: {text}") from None


def _read(path: Path, settings: Line) -> RunLog:
    if settings.get("mode") == "buffered":
        raise ValueError(
            f"{path}: cannot be studied: its rounds are buffered, so the updates of a round are "
            "not those of its draws"
        )
    fresh = RunHistory(path)
    used: Floats = np.empty(0)  # NaN: the line's ``mean_size``
    sizes: Floats = np.empty(0)
    rounds, unknown, without_norms = [], 0, 0
    for line in fresh.read(skip_damaged=True):
        if line["type"] in ("roster", "sizes"):
            if line["type"] == "roster":
                used = _floats(line["used_sizes"])
            else:
                used[line["clients"]] = _floats(line["used_sizes"])
            sizes = np.where(np.isnan(used), _floats([line.get("mean_size")]), used)
        if line["type"] != "round" or line["round"] == 0 or line.get("skipped") or not line["clients"]:
            continue
        if not sizes.size:
            raise ValueError(f"{path}: has no roster line before round {line['round']}")
        if sizes.size == 1:
            continue
        absent = _absent(line, sizes.size)
        if absent is None:
            unknown += 1
            continue
        logged = _logged(path, line, sizes, absent, settings)
        rounds.append(logged)
        without_norms += not logged.clients.size
    if sizes.size == 1:
        raise ValueError(f"{path}: has one client, so there is nothing to select")
    if not rounds and unknown:
        raise ValueError(
            f"{path}: does not say which clients were unavailable; it was written by an earlier version, or "
            "more than 1000 clients were unavailable in each round"
        )
    if not rounds:
        raise ValueError(f"{path}: has no round in which clients trained")
    if without_norms == len(rounds):
        raise ValueError(f"{path}: has no update norms")
    return RunLog(path, settings, rounds)


def _absent(line: Line, num_clients: int) -> Any:
    """Return the clients that were not selectable in a round; None if the line does not name them."""
    if line["num_available"] == num_clients:
        return np.empty(0, dtype=np.int64)
    absent = line.get("absent")
    if absent is None or len(absent) != num_clients - line["num_available"]:
        return None
    return np.array(absent, dtype=np.int64)


def _logged(path: Path, line: Line, sizes: Floats, absent: Any, settings: Line) -> LoggedRound:
    """Convert a line of the history into a round of the log.

    The importance of a client is the client's weight in the history, which is already corrected for missing
    replies, divided by its share λ. Clients without a known norm are left out. If such a client has replied,
    the importance of the other clients is scaled up.
    """
    clients, counts = (np.array(line[key], dtype=np.int64) for key in ("clients", "counts"))
    probabilities, weights, norms = (
        _floats(line[key]) for key in ("probabilities", "weights", "update_norms")
    )
    if not (probabilities > 0).all():
        client = line["client_ids"][int(np.argmin(probabilities > 0))]
        raise ValueError(f"{path}: round {line['round']}: the probability of {client} is not above 0")
    replied = weights > 0
    known = replied & np.isfinite(norms)
    present = sizes.copy()
    present[absent] = 0
    shares: Floats = present[clients] / float(present.sum())
    if not (shares > 0).all():
        raise ValueError(f"{path}: round {line['round']}: an unavailable client was selected")
    importance = weights / shares
    if replied.all() and _draws_independently(settings) and clients.size < sizes.size - absent.size:
        expected = counts / (counts.sum() * probabilities)
        if np.abs(importance / expected - 1).max() > DIFFERENCE:
            raise ValueError(
                f"{path}: round {line['round']}: the weights do not follow from the data sizes in the history"
            )
    scale = int(replied.sum()) / max(1, int(known.sum()))
    return LoggedRound(
        line["round"],
        sizes,
        absent,
        clients.size == sizes.size - absent.size and bool(known.all()),
        clients[known],
        counts[known],
        probabilities[known],
        importance[known] * scale,
        norms[known],
    )


def _draws_independently(settings: Line) -> bool:
    """Return whether the importance of a client with the probability p must be the client's draws / (n p).

    n is the number of all draws in the round.
    """
    kind = selector_type(settings["selector"])
    given = parse_settings(str(settings["selector_settings"]))
    return (
        issubclass(kind, ProbabilitySelector)
        and not kind.own_draws
        and given.get("replacement", True) is True
        and (given.get("design") or settings.get("design") or "own") in ("own", "independent", "stratified")
        and settings.get("correction", "equal") == "equal"
    )


def candidates(log: RunLog, names: Sequence[str]) -> dict[str, Selector]:
    """Return new selectors for a study of a log: those that are named, and `BASELINE`.

    `names`: selectors as on the command line, "name" or "name:setting=value,setting=value". If `names` is
    empty, `NAMES` and the selector of the run.
    """
    wanted = [BASELINE, *names]
    if not names:
        given = ",".join(str(log.settings["selector_settings"]).replace(",", " ").split())
        own = log.settings["selector"] + (f":{given}" if given else "")
        wanted = [*NAMES, *([own] if _can_be_studied(log.settings["selector"]) else [])]
    sizes = log.rounds[0].sizes
    found = {}
    for text in dict.fromkeys(wanted):
        name, _, given = text.partition(":")
        check_candidate(name)
        settings = settings_of_run(name, parse_settings(given), int(log.settings.get("local_steps", 0)))
        settings.pop("ask_norms", None)  # the answers are not in the history
        found[text] = create(
            name,
            sizes.size,
            client_sizes=sizes,
            clients_per_round=min(int(log.settings["clients_per_round"]), sizes.size),
            num_rounds=log.settings["num_rounds"],
            seed=log.settings["seed"],
            **settings,
        )
    return found


def _can_be_studied(name: str) -> bool:
    try:
        check_candidate(name)
    except ValueError:
        return False
    return True


def advice_of(log: RunLog, names: Sequence[str] = ()) -> Findings:
    """Study a log, see `candidates` for the names."""
    try:
        selectors = candidates(log, names)
    except KeyError as error:
        raise ValueError(f"{log.path}: cannot be studied, since it has no {error}") from None
    except ValueError as error:
        raise ValueError(str(error) if names else f"{log.path}: {error}") from None
    try:
        return study(log.rounds, selectors, selector_type(log.settings["selector"]).data_independent)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{log.path}: {error}") from None


def as_json(findings: Findings | None, slow: SlowClients | None) -> str:
    """Return a JSON object: selector -> variance, low, high, exact; `SLOW_CLIENTS` -> `SlowClients.numbers`.

    Without `findings`, the object has no selectors. Without `slow`, it has no `SLOW_CLIENTS`.
    """
    found: dict[str, Any] = {
        name: {
            "variance": finding.interval.value,
            "low": finding.interval.low,
            "high": finding.interval.high,
            "exact": finding.exact,
        }
        for name, finding in (findings.selectors.items() if findings else ())
    }
    return json.dumps(found | ({SLOW_CLIENTS: slow.numbers()} if slow else {}))


def table(findings: Findings) -> Table:
    """Return the findings as a table for the terminal."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("selector", overflow="fold")
    for title in ("variance", "95 % interval", "effective\ndraws"):
        shown.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    shown.add_column("probabilities", vertical="bottom", no_wrap=True)
    for name, finding in findings.selectors.items():
        value, low, high = finding.interval
        shown.add_row(
            name.replace(":", ":\n").replace("=", "\n= "),  # so that 80 columns are enough
            _number(value),
            f"{_number(low)} to {_number(high)}",
            f"{finding.draws:,.0f}",
            "exact" if finding.exact else "replayed",
        )
    return shown


def sentence(findings: Findings) -> str:
    """Return the advice as text, with a warning if some clients never sent an update in the log."""
    advice = findings.advice
    if advice.selector == BASELINE:
        text = (
            f"Use {BASELINE}: with 95 % confidence, no other selector here has a variance lower by more than "
            "5 %."
        )
    elif advice.selector is not None:
        _, low, high = findings.selectors[advice.selector].interval
        text = (
            f"Use {advice.selector}: with 95 % confidence, its variance is {_number(low)} to {_number(high)} "
            "times that of uniform sampling; no other selector here has a variance lower by more than 5 %."
        )
    else:
        text = (
            f"The log cannot tell: in its {findings.rounds} rounds, {advice.best} has the smallest estimate, "
            f"but the log does not distinguish it from {advice.rival}."
        )
        if advice.rounds:
            text += f" Roughly {advice.rounds:,} rounds would be enough."
    if findings.never_drawn:
        clients = "1 client" if findings.never_drawn == 1 else f"{findings.never_drawn} clients"
        text += (
            f" {clients} never sent an update in the log. If such a client's norms are unlike those of the "
            "others, the intervals do not show it."
        )
    return text


def _number(value: float) -> str:
    """Format a ratio with three digits."""
    if not isfinite(value):
        return "∞"
    text = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    return re.sub(r"e\+?(-?)0*", r"e\1", text)


def _floats(values: Sequence[float | None]) -> Floats:
    """Return numbers of the history; NaN for null."""
    return np.array([nan if value is None else value for value in values], dtype=np.float64)
