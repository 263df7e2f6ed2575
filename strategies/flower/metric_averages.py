"""Averages the clients' metrics with the server strategy's function, and leaves out unusual replies."""

from __future__ import annotations

from collections import Counter
from itertools import compress
from logging import WARNING
from math import inf
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flwr.app import MetricRecord
from flwr.common import log

from ..clients.printable import LONGEST_NAME
from .contents import of_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flwr.app import Message, RecordDict

Answer = TypeVar("Answer")
MOST_METRICS, MOST_NUMBERS = 100, 1000
"""The most metrics, and the most numbers in all metrics, that a reply may have. There is a limit because the
averages of every round are kept in memory and on disk."""


def averaged(
    average: Callable[[list[Answer]], MetricRecord | None],
    answers: Sequence[Answer],
    contents: Sequence[RecordDict],
    what: str,
) -> MetricRecord | None:
    """Return the average over the usual replies; None if there is none, or if ``average`` raises an error.

    A reply is left out if a number is not finite, if a name is not printable or too long, or if the reply has
    more than `MOST_METRICS` metrics or `MOST_NUMBERS` numbers. Of the remaining replies, only those with the
    most frequent combination of metric names and lengths are averaged.

    Parameters
    ----------
    average : callable
        The server strategy's function. It gets the elements of ``answers`` that belong to usual replies.
    answers : sequence
        One element for each reply, in the form that ``average`` takes.
    contents : sequence of RecordDict
        The content of each reply, with its metrics, aligned with ``answers``.
    what : str
        The name of the metrics in the log.
    """
    try:
        fit = list(compress(answers, _are_usual(contents)))
        if len(fit) < len(answers):
            log(WARNING, "%d replies were left out of the %s", len(answers) - len(fit), what)
        return average(fit) if fit else None
    except Exception as error:  # metrics must not cost the round
        log(WARNING, "There are no %s: %s", what, error)
        return None


def has_size(reply: Message, key: str) -> bool:
    """Return whether a reply has exactly one metric record, in which ``key`` is a finite number > 0."""
    records = [] if reply.has_error() else list(of_kind(reply.content, MetricRecord).values())
    size = records[0].get(key) if len(records) == 1 else None
    return isinstance(size, int | float) and 0 < size < inf


def _are_usual(contents: Sequence[RecordDict]) -> list[bool]:
    forms = [_form(content) for content in contents]
    most = Counter(form for form in forms if form is not None).most_common(1)
    return [form is not None and form == most[0][0] for form in forms]


def _form(content: RecordDict) -> frozenset[tuple[str, int]] | None:
    """Return the names and lengths of a reply's metrics; None if the metrics must not be averaged."""
    records = list(of_kind(content, MetricRecord).values())
    if sum(map(len, records)) > MOST_METRICS:
        return None
    metrics = [each for record in records for each in record.items()]
    if not all(name.isprintable() and len(name) <= LONGEST_NAME for name, _ in metrics):
        return None
    sizes = [(name, len(value) if isinstance(value, list) else 1) for name, value in metrics]
    if sum(size for _, size in sizes) > MOST_NUMBERS:
        return None
    try:
        finite = all(np.isfinite(np.asarray(value, dtype=np.float64)).all() for _, value in metrics)
    except OverflowError:  # an integer that no float can hold
        return None
    return frozenset(sizes) if finite else None
