"""Checks the fields of a history's lines: the kind of each value, and how large a number may be.

Histories may be damaged, edited, or written by other programs. A line with a field of the wrong kind, or
without a field that `_NEEDED` names for its type, is damaged as a whole. Some other missing fields get a
default. Unknown fields and types of lines are not checked.
"""

from collections.abc import Callable, Iterable
from typing import Any

LARGEST = 1e50
"""A larger number is read as null, as if it were not finite: a sum of squares could overflow."""
MOST = 2**31 - 1
"""The largest allowed whole number, such as the number of a round, an index or a number of draws."""


def _number(value: Any) -> int | float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number or null")
    return value if abs(value) <= LARGEST else None  # NaN is not


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise ValueError(f"must be a whole number from 0 to {MOST}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def read_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError("must be a list")
        return [read(each) for each in value]

    return read_list


def _reason(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must have a client and a reason")
    return {name: _text(value.get(name)) for name in ("client", "reason")}


def _numbers_by_name(value: Any) -> dict[str, int | float | None]:
    if not isinstance(value, dict):
        raise ValueError("must be an object with numbers")
    return {name: _number(each) for name, each in value.items()}


def _metrics_by_group(value: Any) -> dict[str, dict[str, int | float | None]]:
    if not isinstance(value, dict):
        raise ValueError("must be an object with the metrics of groups")
    nothing: dict[str, int | float | None] = {"loss": None, "accuracy": None}
    return {group: nothing | _numbers_by_name(metrics) for group, metrics in value.items()}


def _or_null(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


_numbers, _texts, _flags, _indexes = map(_list_of, (_number, _text, _flag, _whole))
_reasons = _list_of(_reason)

_RUN: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("num_rounds", "num_clients", "clients_per_round", "seed", "local_steps"), _whole),
    **dict.fromkeys(
        ("selector", "selector_settings", "started", "client_sizes", "correction", "task"), _text
    ),
}
# Lists with one entry for each selected client.
ALIGNED = ("client_ids", "counts", "probabilities", "importance", "weights", "update_norms", "responded")
# Lists with one entry for each selected client, or with no entry.
MAYBE_ALIGNED = (
    "reported_norms",
    "train_losses",
    "reply_seconds",
    "training_seconds",
    "batteries",
    "staleness",
)
ROUND: dict[str, tuple[Callable[[Any], Any], str]] = {
    "round": (_whole, "its number; 0 is the model before training, whose line holds the test numbers only"),
    "test_loss": (_number, "loss on the test data; missing if the model was not evaluated after this round"),
    "test_accuracy": (_number, "accuracy on the test data, 0 to 1; likewise"),
    "clients": (_indexes, "indexes of the selected clients, in the order of the draws"),
    "client_ids": (_texts, "their identities"),
    "counts": (_indexes, "how often each was drawn"),
    "probabilities": (_numbers, "p_m, see the glossary"),
    "importance": (_numbers, "W_m, see the glossary"),
    "weights": (_numbers, "c_m, the coefficient of the update in the aggregate"),
    "responded": (_flags, "whether the update was used"),
    "update_norms": (_numbers, "the norms ‖g_m‖ that the selector learned from"),
    "reported_norms": (_numbers, "‖g_m‖ as the client reports it, before the guard clips it"),
    "train_losses": (_numbers, "the losses that the selector learned from"),
    "reply_seconds": (_numbers, "from the TRAIN message until the server had the reply"),
    "training_seconds": (_numbers, "as the client reports them"),
    "batteries": (_numbers, "charge in %, as the client reports it"),
    "staleness": (_numbers, "how many rounds ended while the client trained, in buffered rounds"),
    "num_stale": (_whole, "updates that were rejected as too stale, in buffered rounds"),
    "in_flight": (_texts, "identities of the first 1000 clients that train when a buffered round ends"),
    "failures": (_reasons, "objects with a client and the reason why its reply was not used"),
    "clipped": (_reasons, "objects with a client and the reason why a value was clipped or ignored"),
    "quarantined": (_texts, "identities of the available clients that quarantine left out"),
    "silent": (_texts, "those in `quarantined` that are in quarantine for silence or errors"),
    "absent": (_or_null(_indexes), "indexes of the clients that were not selectable; null: more than 1000"),
    "num_available": (_whole, "number of selectable clients"),
    "eligible": (_text, "the conditions of the setting `eligible` in this round"),
    "num_ineligible": (_whole, "clients that are online and willing to train, but not eligible"),
    "skipped": (_text, "why the round left the model unchanged; empty if it changed the model"),
    "train_loss": (_number, "mean of `train_losses`, weighted by `weights`"),
    "seconds": (_number, "from the poll to the new model"),
    "phases": (_numbers_by_name, "seconds by part: `poll`, `train`, `aggregate`; empty without messages"),
    "messages_sent": (_number, "since the line of the previous round; missing without messages"),
    "bytes_sent": (_number, "likewise"),
    "messages_received": (_number, "likewise"),
    "bytes_received": (_number, "likewise"),
    "group_metrics": (
        _metrics_by_group,
        "`loss` and `accuracy` by group, on the samples of the group's clients that evaluated the model",
    ),
}
"""The fields of a round's line: how each is checked, and what it means (docs/reference/history.md)."""
_SIZES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("client_sizes", "used_sizes"), _numbers),
    "mean_size": _number,
}
_KNOWN: dict[str, dict[str, Callable[[Any], Any]]] = {
    "run": _RUN,
    "round": {name: read for name, (read, _) in ROUND.items()},
    "roster": {
        **_SIZES,
        "client_ids": _texts,
        "client_groups": _or_null(_list_of(_or_null(_text))),
    },
    "sizes": {**_SIZES, "clients": _indexes},
    "resume": {"round": _whole, "started": _text, "num_rounds": _whole},
    "warning": {"round": _whole, "reason": _text},
    "end": {"rounds": _whole, "seconds": _number, "reason": _text},
    "error": {"reason": _text},
}
_NEEDED = {
    "round": ("round",),
    "roster": ("client_ids", "client_sizes"),
    "sizes": ("clients", "client_sizes"),
    "resume": ("round", "num_rounds"),
    "warning": ("round", "reason"),
    "error": ("reason",),
}


def checked(line: Any) -> dict[str, Any]:
    """Return the value of a line's JSON with checked fields.

    Raises
    ------
    ValueError
        If the line is no object with a type, if a field is missing or of the wrong kind, or if lists that
        must be aligned differ in length. The message names the field.
    """
    if not isinstance(line, dict) or not isinstance(line.get("type"), str):
        raise ValueError("must be an object with a type")
    kind = line["type"]
    for name in _NEEDED.get(kind, ()):
        if name not in line:
            raise ValueError(f"{name} is missing")
    found = dict(line)
    for name, read in _KNOWN.get(kind, {}).items():
        if name in line:
            try:
                found[name] = read(line[name])
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
    if kind == "round":
        return _aligned(found)
    if kind in ("roster", "sizes"):
        found.setdefault("used_sizes", found["client_sizes"])
    if kind == "roster":
        found["client_groups"] = found.get("client_groups") or [None] * len(found["client_ids"])
        _same_length(found, "client_ids", ("client_sizes", "client_groups", "used_sizes"))
    elif kind == "sizes":
        _same_length(found, "clients", ("client_sizes", "used_sizes"))
    return found


def _aligned(line: dict[str, Any]) -> dict[str, Any]:
    """Return a round's line with missing fields filled in. Refuse aligned lists of different lengths."""
    evaluated = "test_loss" in line or "test_accuracy" in line
    found = {**({"test_loss": None, "test_accuracy": None} if evaluated else {}), **line}
    if line["round"] == 0:
        return found
    clients = line.get("clients", [])
    found = {
        **{name: [] for name in ("failures", "clipped", "quarantined")},
        "clients": clients,
        "client_ids": [str(client) for client in clients],
        "counts": [1] * len(clients),
        "responded": [True] * len(clients),
        "probabilities": [None] * len(clients),
        **found,
    }
    _same_length(found, "clients", ALIGNED)
    _same_length(found, "clients", [name for name in MAYBE_ALIGNED if found.get(name)])
    return found


def _same_length(line: dict[str, Any], first: str, others: Iterable[str]) -> None:
    """Refuse lists of other lengths than the list ``first``; ``others`` may be missing."""
    for name in others:
        if name in line and len(line[name]) != len(line[first]):
            raise ValueError(f"{name} must have one entry for each of {first}")
