"""Answers of clients that are functions, and runs of the strategy over them."""

from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import Result

from strategies import RoundRecord, SelectionStrategy
from strategies.clients.reports import Report
from strategies.flower.messages import write_report
from strategies.options import Polling


def model(*values):
    return ArrayRecord({"w": Array(np.array(values, np.float32))})


def weights(message):
    """Return the model in a message."""
    return next(iter(message.content.array_records.values()))["w"].numpy()


def config_of(message):
    return message.content.config_records["config"]


def reply(message, w=None, **report):
    """Return a reply with a report and, if given, a model."""
    content = write_report(Report(**report))
    if w is not None:
        content["arrays"] = ArrayRecord({"w": Array(w)})
    return Message(content, reply_to=message)


class Played(NamedTuple):
    w: Any
    records: list[RoundRecord]
    strategy: SelectionStrategy
    result: Result


def play(grid, selector="uniform", rounds=1, start=None, given=None, **options):
    """Run a strategy of a selector, or of a class; ``given`` are further arguments of `start`."""
    if given is None:
        given = {}
    records = []
    make = {"selector": selector} if isinstance(selector, str) else {}
    strategy = (SelectionStrategy if make else selector)(**{
        "clients_per_round": 2, "polling": Polling(ask_status=True, interval=1), "on_round": records.append,
        **make, **options,
    })  # fmt: skip
    result = strategy.start(grid, start or model(0, 0), num_rounds=rounds, **given)
    w = next(iter(result.arrays.values())).numpy() if result.arrays else np.array([])
    return Played(w, records, strategy, result)
