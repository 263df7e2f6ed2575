"""The ClientApp of `benchmarks.disturbed`: this repository's ClientApp, with faults and liars.

All faults are functions of (the run's seed, round, partition), so that a seed gives one history of faults.
"""

import os
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client.app import app as honest

DEADLINE = 3.0  # seconds that a round waits for replies
FAILING = 0.3  # of the clients selected to train
LYING = 0.1  # of all clients
SHARES = {"raise": 0.8, "late": 0.15, "die": 0.05}  # of the failures
LIE = 100.0  # factor on the updates, losses and sizes of liars
_LIES = ("flip", "garbage")


def lies(partition: int, num_partitions: int) -> bool:
    """Return whether a client lies: every tenth one does, regardless of its data."""
    every = round(1 / LYING)
    return partition % every == every // 2


def fault(seed: int, server_round: int, partition: int) -> str:
    """Return the way in which a client fails in a round, "" if it does not."""
    random = np.random.default_rng([seed, server_round, partition])
    if random.random() >= FAILING:
        return ""
    return str(random.choice(list(SHARES), p=list(SHARES.values())))


class FaultyApp(ClientApp):
    """The honest app with injected failures and lies."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message, fail or lie."""
        partition = int(str(context.node_config["partition-id"]))
        liar = lies(partition, int(str(context.node_config["num-partitions"])))
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
    """Turn an honest reply into a lie."""
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
