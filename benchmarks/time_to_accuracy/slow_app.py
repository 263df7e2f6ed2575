"""The ClientApp of `benchmarks.time_to_accuracy.processes`: this repository's ClientApp, made slow.

A client sleeps before it trains. The length of the sleep is a function of the run's seed, the round and the
client's partition, so runs with the same seed have the same slow clients.
"""

import time

import numpy as np
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from client.app import app as fast

# The median seconds of a sleep, and two standard deviations of the logarithm of the seconds: SIGMA over the
# clients, and JITTER over the rounds of a client.
MEDIAN, SIGMA, JITTER = 1.0, 1.0, 0.3


def typical(seed: int, partition: int) -> float:
    """Return the median seconds that a client sleeps."""
    return MEDIAN * float(np.exp(SIGMA * np.random.default_rng([seed, partition]).standard_normal()))


class SlowApp(ClientApp):
    """The repository's ClientApp, which sleeps before it trains."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message as the repository's ClientApp does, but later."""
        if message.metadata.message_type == MessageType.TRAIN:
            seed, partition = (
                int(str(value)) for value in (context.run_config["seed"], context.node_config["partition-id"])
            )
            round_ = int(str(message.content.config_records["config"]["server-round"]))
            jitter = np.random.default_rng([seed, partition, round_]).standard_normal()
            time.sleep(typical(seed, partition) * float(np.exp(JITTER * jitter)))
        return fast(message, context)


app = SlowApp()
