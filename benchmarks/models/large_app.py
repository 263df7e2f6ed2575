"""A Flower app with a large model.

A client adds a number made from its node id to the first parameter of each layer, so that the clients' layers
differ: the SuperLink stores equal layers only once.
"""

import time

import noop  # type: ignore[import-not-found]
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()

LAYERS = 10
# A copy of `strategies.half_precision.HALF`: in stock Flower, this app must run without this project.
HALF = "half-precision"


@client.train()
def train(message: Message, context: Context) -> Message:
    """Answer a TRAIN message, in half precision if the message is in half precision."""
    if HALF not in message.content:
        return trained(message, context)
    from strategies.half_precision import half_precision_mod

    return half_precision_mod(message, context, trained)


def trained(message: Message, context: Context) -> Message:
    """Change a parameter of each layer, and send the model back."""
    began = time.process_time()
    model = message.content.array_records["arrays"]
    changed = ArrayRecord()
    for name in list(model):
        layer = model.pop(name).numpy().copy()
        layer[0] += context.node_id % 1000 + 1
        changed[name] = Array(layer)
    content = RecordDict({"arrays": changed})
    content["metrics"] = MetricRecord({"num-examples": 1, "cpu": time.process_time() - began})
    return Message(content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that the benchmark asks for, turn by turn (see `benchmarks.noop`)."""
    size = round(float(str(context.run_config["megabytes"])) * 1e6 / 4 / LAYERS)
    if context.run_config["half"]:
        from strategies.half_precision import HalfPrecisionGrid

        grid = HalfPrecisionGrid(grid)
    noop.run_turns(grid, context, ArrayRecord([np.zeros(size, np.float32) for _ in range(LAYERS)]))
