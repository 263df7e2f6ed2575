"""The ClientApp: a `ReportingClientApp`, so that the server knows data sizes before round 1."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr_cohort import Report, ReportingClientApp

from .task import evaluate, load_part, train


def _data(context: Context):
    return load_part(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


def report(context: Context) -> Report:
    """Return this client's identity and data size, for the server."""
    number = context.node_config["partition-id"]
    return Report(client_id=f"client-{number}", num_examples=len(_data(context)[1]))


app = ReportingClientApp(report=report)


@app.train()
def train_model(message: Message, context: Context) -> Message:
    """Train the model on this client's data."""
    inputs, labels = _data(context)
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    weights, loss = train(
        weights,
        inputs,
        labels,
        steps=int(context.run_config["local-steps"]),
        rate=float(context.run_config["learning-rate"]),
        seed=int(message.content["config"]["seed"]),  # a function of the run's seed, the round and the client
    )
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_model(message: Message, context: Context) -> Message:
    """Evaluate the model on this client's data."""
    inputs, labels = _data(context)
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    loss, accuracy = evaluate(weights, inputs, labels)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
