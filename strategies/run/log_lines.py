"""Writes the metrics of a round in one line, and keeps the counts of Flower's strategies out of the log."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..clients.printable import printable

_LONGEST_LINE = 2000  # the most characters of a round's metrics that are logged
_STEPS = ("configure_train", "configure_evaluate", "aggregate_train", "aggregate_evaluate")


def as_text(metrics: Mapping[str, int | float | list[int] | list[float]]) -> str:
    """Return metrics as one line with four significant digits and 2,000 characters at most.

    Examples
    --------
    >>> as_text({"loss": 2.3025856018066406, "accuracy": 0.0805, "num-steps": 4, "per-class": [0.5, 1 / 3]})
    'loss 2.303, accuracy 0.0805, num-steps 4, per-class [0.5, 0.3333]'
    """

    def number(value: float) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    def text(value: float | list[int] | list[float]) -> str:
        return f"[{', '.join(map(number, value))}]" if isinstance(value, list) else number(value)

    return printable(", ".join(f"{name} {text(value)}" for name, value in metrics.items()), _LONGEST_LINE)


@contextmanager
def counts_not_logged() -> Iterator[None]:
    """Keep the server strategy's lines such as "Sampled 2 nodes (out of 2)" out of the log.

    The server strategy sees only the selected clients, and averages metrics once for each group, so its
    counts are not those of the round.
    """

    def is_kept(line: logging.LogRecord) -> bool:
        start, _, rest = line.getMessage().partition(": ")
        return start not in _STEPS or not rest.startswith(("Sampled ", "Received "))

    logger = logging.getLogger("flwr")
    logger.addFilter(is_kept)
    try:
        yield
    finally:
        logger.removeFilter(is_kept)
