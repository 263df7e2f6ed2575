"""The clients' metrics, averaged by the server strategy; outliers in form or value are excluded."""

from __future__ import annotations

from collections import Counter
from itertools import compress
from logging import WARNING
from math import inf
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flwr.common import log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flwr.app import Message, MetricRecord, RecordDict

Answer = TypeVar("Answer")


def averaged(
    average: Callable[[list[Answer]], MetricRecord | None],
    answers: Sequence[Answer],
    contents: Sequence[RecordDict],
    what: str,
) -> MetricRecord | None:
    """Return the average of the replies with matching metrics.

    Those are finite and have the names and lengths that most of the finite ones have.

    Parameters
    ----------
    average : callable
        The server strategy's function; if it raises, there is no average.
    answers : sequence
        Its input.
    contents : sequence of RecordDict
        The metrics of each reply.
    what : str
        What the metrics are of, for the log.
    """
    try:
        fit = list(compress(answers, _are_usual(contents)))
        if len(fit) < len(answers):
            log(WARNING, "%d replies were left out of the %s", len(answers) - len(fit), what)
        return average(fit)
    except Exception as error:  # metrics must not cost the round
        log(WARNING, "There are no %s: %s", what, error)
        return None


def has_size(reply: Message, key: str) -> bool:
    """Return whether an evaluation has exactly one record of metrics, with a weight in it."""
    records = [] if reply.has_error() else list(reply.content.metric_records.values())
    size = records[0].get(key) if len(records) == 1 else None
    return isinstance(size, int | float) and 0 < size < inf


def _are_usual(contents: Sequence[RecordDict]) -> list[bool]:
    forms = []
    for content in contents:
        metrics = [each for record in content.metric_records.values() for each in record.items()]
        finite = all(np.isfinite(value).all() for _, value in metrics)
        forms.append(frozenset((name, np.size(value)) for name, value in metrics) if finite else None)
    most = Counter(form for form in forms if form is not None).most_common(1)
    return [form is not None and form == most[0][0] for form in forms]
