"""The ClientApp of the nemesis: trains with `updates.trained`, and logs each training to a file of its own.

Bundled as client/app.py in a copy of this project's app. The log is `../trainings/CLIENT.jsonl` beside the
run's output-dir: a line when a training begins and one when it ends.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .updates import fingerprint, num_examples, trained

STEP_SECONDS = 0.05  # mean; a training takes so long that faults meet it

app = ClientApp()


@app.query("status")
def status(message, context):
    client = int(str(context.node_config["partition-id"]))
    identity = ConfigRecord({"client-id": f"client-{client:02d}"})
    metrics = MetricRecord({"num-examples": num_examples(client), "available": 1})
    return Message(RecordDict({"identity": identity, "metrics": metrics}), reply_to=message)


@app.query("loss")
def loss(message, context):
    client = int(str(context.node_config["partition-id"]))
    metrics = MetricRecord({"num-examples": num_examples(client), "available": 1, "loss": 1 + 0.1 * client})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.train()
def train(message, context):
    client = int(str(context.node_config["partition-id"]))
    round = int(str(message.content.config_records["config"]["server-round"]))
    model = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    folder = Path(str(context.run_config["output-dir"])).parent / "trainings"
    folder.mkdir(parents=True, exist_ok=True)
    if round == 1:
        np.savez(folder / f"first-model-{client}.npz", **model)
    about = {"client": client, "round": round, "pid": os.getpid(), "born": born(os.getpid())}
    note(folder, client, {"event": "begin", **about, "model": fingerprint(model)})
    steps = int(str(context.run_config["local-steps"]))
    time.sleep(steps * STEP_SECONDS * np.random.default_rng([round, client]).uniform(0.5, 1.5))
    result = trained(client, round, model)
    note(folder, client, {"event": "end", **about})
    metrics = MetricRecord({"num-examples": num_examples(client), "train-loss": 1 / round})
    arrays = ArrayRecord({name: Array(array) for name, array in result.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def note(folder, client, line):
    """Append a line at once: this process may be killed in the next moment."""
    file = os.open(folder / f"client-{client:02d}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, (json.dumps({**line, "at": time.time()}) + "\n").encode())
    os.close(file)


def born(pid):
    """Return when a process started, in clock ticks: with its id it is unique (Linux)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
