"""The ClientApp: reports its status, trains, evaluates. Handlers only; the work is in `tasks`."""

from logging import INFO
from math import isfinite, sqrt

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import log

import tasks
from strategies.clients.reports import REPORT_NORM, REPORT_VARIANCE, UPDATE_SCALES, UPDATE_WEIGHT, Report
from strategies.flower.messages import write_report
from strategies.rounds.variates import CONTROL
from tasks.base import batches
from tasks.data import Dataset

from .device import why_unavailable
from .local import LocalData
from .own_data import local_data
from .private import Noise, group_member

app = ClientApp()


@app.query("status")
def status(message: Message, context: Context) -> Message:
    """Report identity, group, data size and availability."""
    return Message(write_report(_status(local_data(context), context)), reply_to=message)


@app.query("loss")
def loss(message: Message, context: Context) -> Message:
    """Report the loss of the received model on all local samples, or on ``batch-size`` of them."""
    mine = local_data(context)
    report = _status(mine, context)
    if report.available:
        config = message.content.config_records["config"]
        data = mine.data
        if "batch-size" in config:
            (batch,) = batches(len(data), _whole(config, "batch-size"), 1, _whole(config, "seed"))
            data = Dataset(data.inputs[batch], data.labels[batch])
        value = mine.task.evaluate(_arrays(message), data).loss
        report = report.model_copy(update={"loss": Noise.of(context).loss(value)})
    return Message(write_report(report), reply_to=message)


@app.query("group")
def group(message: Message, context: Context) -> Message:
    """Report the client's private group by randomised response, and no other data."""
    config = message.content.config_records["config"]
    member = group_member(context, _whole(config, "num-groups"), _number(config, "epsilon"))
    available = _is_available(context)
    answer = member.report(_whole(config, "server-round")) if available else None
    return Message(write_report(Report(group=answer, available=available)), reply_to=message)


@app.query("invitation")
def invitation(message: Message, context: Context) -> Message:
    """Report whether this client takes part: yes with the probability of its group."""
    config = message.content.config_records["config"]
    member = group_member(context, _whole(config, "num-groups"))
    yes = member.accepts(_whole(config, "server-round"), np.array(config["rates"], dtype=np.float64))
    available = _is_available(context)
    report = Report(accepts=yes if available else None, available=available)
    return Message(write_report(report), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train from the received model and return the result with a report.

    A device that must not train now sends its report alone.
    """
    mine = local_data(context)
    report = _status(mine, context)
    if not report.available:
        return Message(write_report(report), reply_to=message)
    config = message.content.config_records["config"]
    noise = Noise.of(context)
    sent = _arrays(message)
    learning_rate = _number(config, "learning-rate")
    result = mine.task.train(
        sent,
        mine.data,
        learning_rate=learning_rate,
        steps=_whole(config, "local-steps"),
        batch_size=_whole(config, "batch-size"),
        seed=_whole(config, "seed"),
        proximal_mu=_number(config, "proximal-mu", 0.0),
        control=_control(message, sent),
        # If numbers have noise, none is sent without it.
        measure_variance=bool(config.get(REPORT_VARIANCE, False)) and not noise.is_on,
    )
    arrays = result.arrays
    wants_norm = bool(config.get(REPORT_NORM, False))
    norm = _distance(arrays, sent) if wants_norm else 0.0  # before any weight is applied
    if UPDATE_SCALES in config:
        scales = np.asarray(config[UPDATE_SCALES], dtype=np.float64)
        scale = np.float32(group_member(context, scales.size).scale(scales))
        arrays = {name: sent[name] + scale * (array - sent[name]) for name, array in arrays.items()}
    if UPDATE_WEIGHT in config:
        weight = np.float32(_number(config, UPDATE_WEIGHT))
        arrays = {name: sent[name] + weight * (array - sent[name]) for name, array in arrays.items()}
    report = report.model_copy(
        update={
            "num_steps": result.steps,
            "learning_rate": learning_rate,
            "train_loss": noise.loss(result.loss),
            "gradient_variance": result.gradient_variance if isfinite(result.gradient_variance) else None,
            "update_norm": noise.norm(norm) if wants_norm else None,
            "available": _is_available(context),  # training may have emptied the battery
        }
    )
    content = write_report(report)
    content["arrays"] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model on the client's own samples."""
    mine = local_data(context)
    noise = Noise.of(context)
    metrics = mine.task.evaluate(_arrays(message), mine.data)
    measured: dict[str, float] = {"num-examples": len(mine.data)}
    if not noise.is_on:
        measured |= {"loss": metrics.loss, "accuracy": metrics.accuracy}
    elif (loss := noise.loss(metrics.loss)) is not None:
        measured["loss"] = loss
    return Message(RecordDict({"metrics": MetricRecord({**measured})}), reply_to=message)


def _status(mine: LocalData, context: Context) -> Report:
    return Report(
        client_id=mine.client_id,
        group=mine.group,
        num_examples=len(mine.data),
        available=_is_available(context),
    )


def _is_available(context: Context) -> bool:
    reason = why_unavailable(context.node_config)
    if reason is not None:
        log(INFO, "Not available: %s", reason)
    return reason is None


def _arrays(message: Message, record: str = "arrays") -> tasks.Arrays:
    return {name: array.numpy() for name, array in message.content.array_records[record].items()}


def _control(message: Message, arrays: tasks.Arrays) -> tasks.Arrays | None:
    """Return the array to add to each gradient (SCAFFOLD), None if there is none.

    Raises
    ------
    ValueError
        If it does not fit the model.
    """
    if CONTROL not in message.content.array_records:
        return None
    control = _arrays(message, CONTROL)
    shapes = {name: array.shape for name, array in control.items()}
    expected = {name: array.shape for name, array in arrays.items()}
    if shapes != expected:
        raise ValueError(f"control has arrays {shapes}: must be those of the model, {expected}")
    return control


def _distance(arrays: tasks.Arrays, others: tasks.Arrays) -> float:
    """Return the L2 norm of the difference."""
    moves = [np.subtract(array, others[name], dtype=np.float64) for name, array in arrays.items()]
    return sqrt(sum(float(np.vdot(move, move)) for move in moves))


def _number(config: ConfigRecord, name: str, default: float | None = None) -> float:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} = {value!r} in the message's config: must be a number")
    return value


def _whole(config: ConfigRecord, name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} = {value!r} in the message's config: must be a whole number")
    return value
