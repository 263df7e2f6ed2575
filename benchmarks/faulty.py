"""The ClientApp of `benchmarks.disturbed`: which clients fail or lie, and how.

Whether and how a client fails in a round is a function of the run's seed, the round and the client's
partition, so runs with the same seed have the same faults.
"""

import os
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client.app import app as honest

DEADLINE = 3.0  # seconds that a round waits for replies
FAILING = 0.3  # probability that a selected honest client fails
LYING = 0.1  # the share of all clients that lie
SHARES = {"raise": 0.8, "late": 0.15, "die": 0.05}  # probability of each way to fail, given a failure
LIE = 100.0  # factor by which liars multiply their losses and sizes, see `_lie` for their updates
_LIES = ("flip", "garbage")


def lies(partition: int) -> bool:
    """Return whether a client lies. Every tenth client does, regardless of its data."""
    every = round(1 / LYING)
    return partition % every == every // 2


def fault(seed: int, server_round: int, partition: int) -> str:
    """Return how a client fails in a round, a key of `SHARES`, or "" if it does not fail."""
    random = np.random.default_rng([seed, server_round, partition])
    if random.random() >= FAILING:
        return ""
    return str(random.choice(list(SHARES), p=list(SHARES.values())))


class FaultyApp(ClientApp):
    """The honest ClientApp, with failures and lies added."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message as the honest ClientApp does, or fail, or lie."""
        partition = int(str(context.node_config["partition-id"]))
        liar = lies(partition)
        kind = _LIES[partition // 10 % len(_LIES)] if liar else ""
        trains = message.metadata.message_type == MessageType.TRAIN
        if trains and not liar:
            server_round = int(str(message.content.config_records["config"]["server-round"]))
            _fail(fault(int(str(context.run_config["seed"])), server_round, partition))
        reply = honest(message, context)
        if liar and not reply.has_error():
            _lie(kind, message, reply.content)
        return reply


def _fail(how: str) -> None:
    if how == "raise":
        raise RuntimeError("out of memory, for example")
    if how == "late":
        time.sleep(DEADLINE + 1)
    elif how == "die":
        os._exit(9)


def _lie(kind: str, message: Message, content: RecordDict) -> None:
    """Turn the content of an honest reply to `message` into a lie.

    The reported number of samples and the reported losses are multiplied by `LIE`. With ``kind="flip"`` the
    update is multiplied by -LIE. With ``kind="garbage"`` the model is all NaN.
    """
    metrics = content.metric_records["metrics"]
    exaggerated = {
        name: float(str(metrics[name])) * LIE
        for name in ("num-examples", "train-loss", "loss")
        if name in metrics
    }
    content["metrics"] = MetricRecord({**metrics, **exaggerated})
    if "arrays" not in content.array_records:
        return
    sent = message.content.array_records["arrays"]
    arrays = {name: array.numpy() for name, array in content.array_records["arrays"].items()}
    for name, trained in arrays.items():
        if kind == "flip":
            base = sent[name].numpy()
            arrays[name] = base - np.float32(LIE) * (trained - base)
        else:
            arrays[name] = np.full_like(trained, np.nan)
    content["arrays"] = ArrayRecord({name: Array(array) for name, array in arrays.items()})


app = FaultyApp()
