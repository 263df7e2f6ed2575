"""A Flower app that trains in torch: a small convolutional network, one step in each message.

The network has the layers of Flower's app quickstart-pytorch. The samples are made up.
"""

import time

import noop  # type: ignore[import-not-found]
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

client = ClientApp()
server = ServerApp()

BATCH, CLASSES = 8, 10


def network() -> nn.Module:
    """Return a network for images of 3 x 32 x 32 pixels, with 62,006 parameters in ten arrays."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, CLASSES),
        ),
    )


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take one step on made-up samples, and report the CPU seconds of this handler."""
    began = time.process_time()
    model = network()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.rand(BATCH, 3, 32, 32), torch.randint(CLASSES, (BATCH,))
    nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
    content["metrics"] = MetricRecord({"num-examples": BATCH, "cpu": time.process_time() - began})
    return Message(content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that the benchmark asks for, turn by turn (see `benchmarks.noop`)."""
    noop.run_turns(grid, context, ArrayRecord(network().state_dict()))
