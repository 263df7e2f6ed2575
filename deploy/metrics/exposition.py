"""Writes samples as text in Prometheus's format (version 0.0.4)."""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from deploy.metrics.catalogue import METRICS
from strategies.clients.printable import LONGEST_NAME, printable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One number of a metric."""

    metric: str
    """A name in `METRICS`."""
    value: float
    labels: tuple[object, ...] = ()
    """The values of the metric's labels, in the order of the labels. They may hold any text."""


def exposition(samples: Iterable[Sample]) -> str:
    """Return the samples as text. Samples of unknown metrics raise KeyError.

    The values of labels are made printable and cut (`LONGEST_NAME`), because some come from clients. If two
    samples then have the same labels, the last one counts.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for metric, value, labels in samples:
        names = METRICS[metric].labels
        pairs = [f'{name}="{_escaped(label)}"' for name, label in zip(names, labels, strict=True)]
        found[metric][f"{{{','.join(pairs)}}}" if pairs else ""] = value
    lines = []
    for metric, (kind, about, _) in METRICS.items():
        if metric in found:
            lines += [f"# HELP {metric} {about}", f"# TYPE {metric} {kind}"]
            lines += [f"{metric}{labels} {_number(value)}" for labels, value in found[metric].items()]
    return "\n".join(lines) + "\n" if lines else ""


def _escaped(label: object) -> str:
    shown = printable(label, LONGEST_NAME).encode(errors="backslashreplace").decode()
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    is_short = float(value).is_integer() and abs(value) < 1e15
    return repr(int(value)) if is_short else repr(float(value))
