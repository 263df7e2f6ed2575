"""The ClientApp: a `ReportingClientApp`, so that the server knows data sizes before round 1."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr_cohort import Report, ReportingClientApp

from .task import Net, evaluate, load_part, train

torch.set_num_threads(1)  # simulated clients train side by side


def _data(context: Context):
    return load_part(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


def report(context: Context) -> Report:
    """Return this client's identity and data size, for the server."""
    number = context.node_config["partition-id"]
    return Report(client_id=f"client-{number}", num_examples=len(_data(context)))


app = ReportingClientApp(report=report)


def _net(message: Message) -> Net:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


@app.train()
def train_model(message: Message, context: Context) -> Message:
    """Train the model on this client's data."""
    net, data = _net(message), _data(context)
    loss = train(
        net,
        data,
        epochs=int(context.run_config["local-epochs"]),
        rate=float(context.run_config["learning-rate"]),
        seed=int(message.content["config"]["seed"]),  # a function of the run's seed, the round and the client
    )
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(data)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate_model(message: Message, context: Context) -> Message:
    """Evaluate the model on this client's data."""
    data = _data(context)
    loss, accuracy = evaluate(_net(message), data)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(data)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
