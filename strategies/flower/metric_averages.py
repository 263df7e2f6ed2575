"""Averages the clients' metrics with the server strategy's function, and leaves out unusual replies."""

from collections import Counter
from collections.abc import Callable, Sequence
from logging import WARNING
from math import inf
from typing import TypeVar

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common import log

from ..clients.printable import LONGEST_NAME, listed, printable
from .arrays import of_kind

Answer = TypeVar("Answer")
MOST_METRICS, MOST_NUMBERS = 100, 1000
"""The most metrics, and the most numbers in all metrics, that a reply may have. There is a limit because the
averages of every round are kept in memory and on disk."""
_MOST_NAMED = 3  # the most replies, and the most metrics of a reply, that a line of the log names


def averaged(
    average: Callable[[list[Answer]], MetricRecord | None],
    answers: Sequence[Answer],
    contents: Sequence[RecordDict],
    what: str,
    names: Sequence[str],
) -> MetricRecord | None:
    """Return the average over the usual replies; None if there is none, or if ``average`` raises an error.

    A reply is left out if a number is not finite, if a name is not printable or too long, or if the reply has
    more than `MOST_METRICS` metrics or `MOST_NUMBERS` numbers. Of the remaining replies, only those with the
    most frequent combination of metric names and lengths are averaged.

    ``answers`` has one element for each reply, in the form that ``average`` takes: the server strategy's
    function. ``contents`` holds the metrics of each reply. ``what`` and ``names`` are the metrics and the
    clients of the replies, for the log.
    """
    try:
        reasons = _why_unusual(contents)
        if left_out := [f"{name} ({why})" for name, why in zip(names, reasons, strict=True) if why]:
            log(WARNING, "Left out of the %s: %s", what, listed(left_out, _MOST_NAMED))
        fit = [answer for answer, why in zip(answers, reasons, strict=True) if not why]
        return average(fit) if fit else None
    except Exception as error:  # metrics must not cost the round
        log(WARNING, "There are no %s: %s", what, error)
        return None


def has_size(reply: Message, key: str) -> bool:
    """Return whether a reply has exactly one metric record, in which ``key`` is a finite number > 0."""
    records = [] if reply.has_error() else list(of_kind(reply.content, MetricRecord).values())
    size = records[0].get(key) if len(records) == 1 else None
    return isinstance(size, int | float) and 0 < size < inf


def _why_unusual(contents: Sequence[RecordDict]) -> list[str]:
    forms = [_form(content) for content in contents]
    most = Counter(form for form in forms if isinstance(form, frozenset)).most_common(1)
    reasons = []
    for form in forms:
        differing = [] if isinstance(form, str) else sorted({_shown(name) for name, _ in form ^ most[0][0]})
        unlike = f"missing, added or of another length: {listed(differing, _MOST_NAMED)}" if differing else ""
        reasons.append(form if isinstance(form, str) else unlike)
    return reasons


def _form(content: RecordDict) -> frozenset[tuple[str, int]] | str:
    """Return the names and lengths of a reply's metrics, or why the metrics must not be averaged."""
    records = list(of_kind(content, MetricRecord).values())
    if sum(map(len, records)) > MOST_METRICS:
        return f"over {MOST_METRICS} metrics"
    metrics = [each for record in records for each in record.items()]
    for name, _ in metrics:
        if not (name.isprintable() and len(name) <= LONGEST_NAME):
            return f"the name {_shown(name)} is not printable, or over {LONGEST_NAME} characters long"
    sizes = [(name, len(value) if isinstance(value, list) else 1) for name, value in metrics]
    if sum(size for _, size in sizes) > MOST_NUMBERS:
        return f"over {MOST_NUMBERS} numbers"
    for name, value in metrics:
        if not _is_finite(value):
            return f"{_shown(name)} is not finite"
    return frozenset(sizes)


def _is_finite(value: object) -> bool:
    try:
        return bool(np.isfinite(np.asarray(value, dtype=np.float64)).all())
    except OverflowError:  # an integer that no float can hold
        return False


def _shown(name: str) -> str:
    return printable(name, 40)
