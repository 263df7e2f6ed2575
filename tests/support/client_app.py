"""Asks the ClientApp one question at a time, and a task, model and samples for it."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

import tasks
from client.app import app
from strategies.flower.messages import read_report

from ..server.test_apps import DEFAULTS
from ..support.toy_grid import ToyGrid

NODE = {"partition-id": 8, "num-partitions": 10}
TRAIN = {"learning-rate": 0.5, "local-steps": 4, "batch-size": 8, "seed": 5, "server-round": 3}


def some_model(task):
    rng = np.random.default_rng(3)
    return {
        name: rng.normal(0, 0.1, array.shape).astype(np.float32)
        for name, array in task.initial_arrays(0).items()
    }


def record(arrays):
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def say(kind, config=None, node=None, run=None, state=None, **arrays):
    """Return what the client answers."""
    ToyGrid({})
    content = RecordDict({name: record(each) for name, each in arrays.items()})
    content["config"] = ConfigRecord(config or {})
    context = Context(
        1, 1, {**NODE, **(node or {})}, RecordDict() if state is None else state, {**DEFAULTS, **(run or {})}
    )
    return app(Message(content, 1, kind), context).content


def report(*args, **kwargs):
    return read_report(say(*args, **kwargs))


def moved(content):
    return {name: array.numpy() for name, array in content.array_records["arrays"].items()}


def flat(arrays):
    return np.concatenate([arrays[name].ravel().astype(float) for name in sorted(arrays)])


DIGITS = tasks.create("digits")
MODEL = some_model(DIGITS)
DATA = DIGITS.client_data(8, 10, seed=DEFAULTS["seed"])
