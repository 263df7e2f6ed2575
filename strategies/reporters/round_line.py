"""The line of a round in a JSONL file. The app's history and `JSONLines` write the same line."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..clients.printable import printable
from ..rounds.record import RoundRecord


def round_line(record: RoundRecord, name_of: Callable[[int], str], **more: Any) -> dict[str, Any]:
    """Return the line of a round >= 1. The docstring of `server.history` describes its entries.

    ``record``: the record of the round. ``name_of``: a function that returns the identity of a client, by
    index. ``**more``: Further entries of the line.
    """

    def by_id(reasons: Mapping[int, str]) -> list[dict[str, str]]:
        return [{"client": name_of(client), "reason": why} for client, why in reasons.items()]

    return {
        "type": "round",
        "round": record.round,
        "num_available": record.num_available,
        "clients": record.selection.clients,
        "client_ids": [name_of(client) for client in record.selection.clients.tolist()],
        "counts": record.selection.counts,
        "probabilities": record.selection.probabilities,
        "importance": record.selection.importance,
        "weights": record.weights,
        "responded": record.feedback.responded,
        "update_norms": record.feedback.update_norms,
        "reported_norms": record.reported_norms,
        "train_losses": record.feedback.losses,
        "reply_seconds": record.reply_seconds,
        "training_seconds": record.training_seconds,
        "batteries": record.batteries,
        "staleness": record.staleness,
        "num_stale": record.num_stale,
        "in_flight": [name_of(client) for client in record.in_flight],
        "train_loss": record.train_loss,
        "failures": by_id(record.failures),
        "clipped": by_id(record.clipped),
        "skipped": record.skipped,
        "quarantined": [name_of(client) for client in record.quarantined],
        "silent": [name_of(client) for client in record.silent],
        "seconds": record.seconds,
        "phases": record.phases,
        "absent": record.absent,
        "eligible": record.eligible,
        "num_ineligible": record.num_ineligible,
        **more,
    }


def encoded(line: Mapping[str, Any]) -> bytes:
    """Return a line as JSON, with a line feed. NaN and infinite numbers become null."""
    return (json.dumps(_plain(dict(line)), allow_nan=False) + "\n").encode()


def printable_line(value: Any) -> Any:
    """Return a JSON value whose texts are safe to print to a terminal."""
    if isinstance(value, str):
        return printable(value, None, keep="\n\t")
    if isinstance(value, list):
        return [printable_line(each) for each in value]
    if isinstance(value, dict):
        return {printable_line(key): printable_line(each) for key, each in value.items()}
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
