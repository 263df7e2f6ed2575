"""A Flower app that trains a softmax regression in NumPy, one step in each message."""

import time

import noop  # type: ignore[import-not-found]
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from sklearn.preprocessing import normalize

client = ClientApp()
server = ServerApp()

FEATURES, CLASSES, BATCH = 64, 10, 32


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take one step on made-up samples, and report the CPU seconds of this handler."""
    began = time.process_time()
    weights, bias = message.content.array_records["arrays"].to_numpy_ndarrays()
    rng = np.random.default_rng(0)
    inputs = normalize(rng.random((BATCH, FEATURES)))
    labels = rng.integers(CLASSES, size=BATCH)
    scores = inputs @ weights + bias
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(BATCH), labels] -= 1
    trained = [weights - 0.1 * inputs.T @ shares / BATCH, bias - 0.1 * shares.mean(axis=0)]
    content = RecordDict({"arrays": ArrayRecord([each.astype(np.float32) for each in trained])})
    content["metrics"] = MetricRecord({"num-examples": BATCH, "cpu": time.process_time() - began})
    return Message(content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that the benchmark asks for, turn by turn (see `benchmarks.noop`)."""
    shapes = (FEATURES, CLASSES), (CLASSES,)
    noop.run_turns(grid, context, ArrayRecord([np.zeros(shape, np.float32) for shape in shapes]))
