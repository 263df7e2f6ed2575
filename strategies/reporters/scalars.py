"""The numbers of a round by name, as all trackers show them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isfinite, nan
from typing import Any

from ..clients.printable import printable
from .base import RoundReport

MOST = 100  # the most metrics of one source, and the most groups: clients choose these names
_LONGEST = 100  # the most characters of such a name


def scalars(report: RoundReport) -> dict[str, float]:
    """Return the finite numbers of a round, by names of the form ``part/name``.

    ============= =====================================================================================
    part          numbers
    ============= =====================================================================================
    evaluate      the metrics of ``evaluate_fn``
    train         the clients' metrics from training, averaged
    clients       the clients' metrics from federated evaluation, averaged
    group/NAME    the metrics of ``clients``, averaged in each group
    round         ``seconds``; numbers of clients: ``available``, ``selected``, ``responded``, ``failed``,
                  ``clipped``, ``quarantined``, ``silent``; ``skipped`` is 1 if the round was skipped; of
                  buffered rounds: ``staleness`` (the mean of the used updates), ``stale`` (the number of
                  updates that were too stale to be used)
    participation ``never_drawn``: the share of the registered clients that were never drawn;
                  ``most_draws``: the draws of the client that was drawn most often
    traffic       the messages and bytes of the round
    ============= =====================================================================================

    There are no numbers of single clients, since a federation may have a million clients.
    """
    found = {f"evaluate/{name}": value for name, value in numbers(report.metrics)}
    found |= {f"train/{name}": value for name, value in numbers(report.train_metrics)}
    found |= {f"clients/{name}": value for name, value in numbers(report.client_metrics)}
    for group, metrics in groups(report.group_metrics):
        found |= {f"group/{group}/{name}": value for name, value in numbers(metrics)}
    if report.record is not None:
        record, drawn = report.record, report.participation
        found |= {
            "round/seconds": record.seconds,
            "round/available": record.num_available,
            "round/selected": len(record.selection.clients),
            "round/responded": int(record.feedback.responded.sum()),
            "round/failed": len(record.failures),
            "round/clipped": len(record.clipped),
            "round/quarantined": len(record.quarantined),
            "round/silent": len(record.silent),
            "round/skipped": int(bool(record.skipped)),
            "participation/never_drawn": drawn[0] / max(1, drawn.sum()),
            "participation/most_draws": len(drawn) - 1,
        }
        if record.staleness.size:
            used = record.staleness[record.feedback.responded]
            found |= {"round/staleness": used.mean() if used.size else nan, "round/stale": record.num_stale}
    if report.traffic is not None:
        found |= {f"traffic/{name}": value for name, value in asdict(report.traffic).items()}
    return {name: float(value) for name, value in found.items() if isfinite(value)}


def groups(metrics: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the metrics of each group, with the group's name in a form that is safe to print."""
    return _cleaned(metrics)


def numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the metrics that are numbers, with names that are safe to print."""
    return _cleaned({name: value for name, value in metrics.items() if isinstance(value, int | float)})


def _cleaned(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the first `MOST` entries. No two names are equal, and trackers accept each of them.

    MLflow accepts letters, digits and a few signs, and refuses names that are paths such as "..".
    """
    taken: set[str] = set()
    for name, value in list(values.items())[:MOST]:
        clean = re.sub(r"[^\w. -]", "_", printable(name, _LONGEST)).strip(". ") or "_"
        number = 1
        while (one := clean if number == 1 else f"{clean} {number}") in taken:
            number += 1
        taken.add(one)
        yield one, value
