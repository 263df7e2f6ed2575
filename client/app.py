"""The ClientApp: its message handlers for status, polls, training and evaluation."""

from logging import getLogger
from math import isfinite, sqrt
from time import monotonic
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import tasks
from strategies import extensions
from strategies.clients.reports import (
    GROUP_NAMES,
    PART_SCALES,
    REPORT_NORM,
    REPORT_VARIANCE,
    UPDATE_SCALES,
    UPDATE_WEIGHT,
    Report,
)
from strategies.flower.messages import write_report
from strategies.half_precision import half_precision_mod
from strategies.rounds.control_variates import CONTROL
from strategies.selectors import selector_type
from tasks.base import TrainResult, batches
from tasks.federated_data import Dataset

from .device_limits import charge, properties_of, why_unavailable
from .local_data import LocalData, number_of
from .personal_model import moved, personal_update, split
from .privacy import Noise, group_member
from .training_note import training_note_mod

PERSONAL = "personal-model"
"""Key of the personal model in the context's state, which the SuperNode keeps while a Flower run lasts."""

extensions.load()  # the user's tasks. Only the owner of this machine can name them
app = ClientApp(mods=[training_note_mod, half_precision_mod])


@app.query("status")
def status(message: Message, context: Context) -> Message:
    """Report identity, group, cost, energy, data size, properties and availability."""
    return Message(write_report(_status(LocalData.from_context(context), context)), reply_to=message)


@app.query("loss")
def loss(message: Message, context: Context) -> Message:
    """Report the loss of the received model on the local samples.

    If the message's config has ``batch-size``, only this many random samples are used. A client that must not
    train now reports no loss.
    """
    mine = LocalData.from_context(context)
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


@app.query("norm")
def norm(message: Message, context: Context) -> Message:
    """Train as for TRAIN and report the norm of the update, but do not send the trained model."""
    return _trained_for_a_question(message, context, sends_update=False)


@app.query("update")
def update(message: Message, context: Context) -> Message:
    """Train as for TRAIN, report the norm of the update, and send the trained model."""
    return _trained_for_a_question(message, context, sends_update=True)


@app.query("group")
def group(message: Message, context: Context) -> Message:
    """Report the client's private group by randomised response, and whether the client is available.

    The report holds nothing else.
    """
    config = message.content.config_records["config"]
    member = group_member(context, _names(config, _whole(config, "num-groups")), _number(config, "epsilon"))
    available = _is_available(context)
    answer = member.report(_whole(config, "server-round")) if available else None
    return Message(write_report(Report(group=answer, available=available)), reply_to=message)


@app.query("invitation")
def invitation(message: Message, context: Context) -> Message:
    """Report whether this client accepts the invitation to train.

    The client accepts with the probability that the server sent for the client's private group.
    """
    config = message.content.config_records["config"]
    member = group_member(context, _names(config, _whole(config, "num-groups")))
    yes = member.accepts(_whole(config, "server-round"), np.array(config["rates"], dtype=np.float64))
    available = _is_available(context)
    report = Report(accepts=yes if available else None, available=available)
    return Message(write_report(report), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train from the received model and send the trained model with a report.

    A device that must not train now sends only its report.
    """
    mine = LocalData.from_context(context)
    report = _status(mine, context)
    if not report.available:
        return Message(write_report(report), reply_to=message)
    config = message.content.config_records["config"]
    trained = _trained_personally if PART_SCALES in config else _trained_with_report
    arrays, told = trained(message, config, context, mine)
    told |= {
        "battery": charge(context.node_config),
        "learning_rate": _number(config, "learning-rate"),
        "available": _is_available(context),  # training may have emptied the battery
    }
    return Message(_content(report.model_copy(update=told), arrays), reply_to=message)


def _trained_with_report(
    message: Message, config: ConfigRecord, context: Context, mine: LocalData
) -> tuple[tasks.Arrays, dict[str, Any]]:
    """Train the received model; return the model to send, and fields of the report."""
    noise, sent = Noise.of(context), _arrays(message)
    began = monotonic()
    result = _trained(
        mine,
        sent,
        config,
        control=_control(message, sent),
        # With report noise on, the variance is not measured, because it would be reported without noise.
        measure_variance=bool(config.get(REPORT_VARIANCE, False)) and not noise.is_on,
    )
    seconds, arrays = monotonic() - began, result.arrays
    reported = _reported_norm(config, noise, _distance(arrays, sent))  # before the update is scaled
    factors = []
    if UPDATE_SCALES in config:
        scales = np.asarray(config[UPDATE_SCALES], dtype=np.float64)
        factors.append(group_member(context, _names(config, scales.size)).scale(scales))
    if UPDATE_WEIGHT in config:
        factors.append(_number(config, UPDATE_WEIGHT))
    for factor in map(np.float32, factors):
        arrays = {name: sent[name] + factor * (array - sent[name]) for name, array in arrays.items()}
    return arrays, {
        "num_steps": result.steps,
        "training_seconds": seconds,
        "train_loss": noise.loss(result.loss),
        "gradient_variance": _finite(result.gradient_variance),
        "update_norm": reported,
    }


def _trained_personally(
    message: Message, config: ConfigRecord, context: Context, mine: LocalData
) -> tuple[tasks.Arrays, dict[str, Any]]:
    """Train the personal model; return the global model plus an update, and fields of the report.

    The update is -(learning rate) times the sum of the scaled parts. If the config has a weight for the
    update, the update is multiplied by this weight. The personal model stays in the context's state.
    """
    sent, noise = _arrays(message), Noise.of(context)
    scales = np.asarray(config[PART_SCALES], dtype=np.float64)
    if scales.shape != (2,):
        raise ValueError(
            f"{PART_SCALES} = {config[PART_SCALES]!r} in the message's config: must be 2 numbers"
        )
    rate = _number(config, "learning-rate")
    began = monotonic()
    result = personal_update(
        mine.task,
        sent,
        _personal(context),
        split(mine.data, _number(config, "personal-holdout"), int(context.run_config["seed"])),
        (bool(scales[0]), bool(scales[1])),
        mu=_number(config, "personal-mu"),
        learning_rate=rate,
        steps=_whole(config, "local-steps"),
        batch_size=_whole(config, "batch-size"),
        seed=_whole(config, "seed"),
    )
    seconds = monotonic() - began
    context.state[PERSONAL] = _record(result.personal)
    step = -rate * sum(scale * part for scale, part in zip(scales, result.parts, strict=True))
    reported = _reported_norm(config, noise, _distance(moved(sent, step), sent))
    if UPDATE_WEIGHT in config:
        step = step * _number(config, UPDATE_WEIGHT)
    model_norm, personal_norm = (
        noise.norm(rate * float(np.linalg.norm(part))) if scale else None
        for scale, part in zip(scales, result.parts, strict=True)
    )
    return moved(sent, step), {
        "num_steps": result.steps,
        "training_seconds": seconds,
        "train_loss": noise.loss(result.loss),
        "update_norm": reported,
        "num_parts": 2,
        "model_norm": model_norm,
        "personal_norm": personal_norm,
    }


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model on the client's own samples.

    If the selector trains personal models, the client's personal model is evaluated, too. With report noise
    on, the only measured number that is sent is the received model's loss, with noise. Without
    ``loss-bound``, this loss is not sent either.
    """
    mine = LocalData.from_context(context)
    noise = Noise.of(context)
    metrics = mine.task.evaluate(_arrays(message), mine.data)
    measured: dict[str, float] = {"num-examples": len(mine.data)}
    if not noise.is_on:
        measured |= {"loss": metrics.loss, "accuracy": metrics.accuracy}
        if selector_type(str(context.run_config["selector"])).part_names:
            own = mine.task.evaluate(_personal(context) or _arrays(message), mine.data)
            measured |= {"personal-loss": own.loss, "personal-accuracy": own.accuracy}
    elif (loss := noise.loss(metrics.loss)) is not None:
        measured["loss"] = loss
    return Message(RecordDict({"metrics": MetricRecord({**measured})}), reply_to=message)


def _reported_norm(config: ConfigRecord, noise: Noise, norm: float) -> float | None:
    """Return the number to report for the norm of an update; None: no number is reported."""
    if config.get(REPORT_NORM, False):
        return noise.norm(norm)
    # The server does not need the report, since it measures the norm of the update that it receives. A report
    # of another norm is an offence. So the norm is reported only if it has no noise, if it is not clipped,
    # and if the update is not scaled.
    return None if UPDATE_SCALES in config or not noise.leaves(norm) else norm


def _trained(
    mine: LocalData,
    sent: tasks.Arrays,
    config: ConfigRecord,
    *,
    control: tasks.Arrays | None = None,
    measure_variance: bool = False,
) -> TrainResult:
    return mine.task.train(
        sent,
        mine.data,
        learning_rate=_number(config, "learning-rate"),
        steps=_whole(config, "local-steps"),
        batch_size=_whole(config, "batch-size"),
        seed=_whole(config, "seed"),
        proximal_mu=_number(config, "proximal-mu", 0.0),
        control=control,
        measure_variance=measure_variance,
    )


def _trained_for_a_question(message: Message, context: Context, *, sends_update: bool) -> Message:
    mine = LocalData.from_context(context)
    report = _status(mine, context)
    if not report.available:
        return Message(write_report(report), reply_to=message)
    config, noise, sent = message.content.config_records["config"], Noise.of(context), _arrays(message)
    wants_variance = bool(config.get(REPORT_VARIANCE, False)) and not noise.is_on
    result = _trained(mine, sent, config, measure_variance=wants_variance)
    norm = noise.norm(_distance(result.arrays, sent))
    told = {"update_norm": norm, "gradient_variance": _finite(result.gradient_variance)}
    report = report.model_copy(update=told)
    return Message(_content(report, result.arrays if sends_update else None), reply_to=message)


def _content(report: Report, arrays: tasks.Arrays | None) -> RecordDict:
    """Return the content of a reply."""
    content = write_report(report)
    if arrays is not None:
        content["arrays"] = _record(arrays)
    return content


def _record(arrays: tasks.Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _status(mine: LocalData, context: Context) -> Report:
    return Report(
        client_id=mine.client_id,
        group=mine.group,
        cost=number_of(context, "cost"),
        energy=number_of(context, "energy"),
        num_examples=len(mine.data),
        properties=properties_of(context.node_config),
        available=_is_available(context),
    )


def _is_available(context: Context) -> bool:
    reason = why_unavailable(context.node_config)
    if reason is not None:
        getLogger("flwr").info("Not available: %s", reason)
    return reason is None


def _personal(context: Context) -> tasks.Arrays | None:
    """Return the personal model, None before the first training."""
    if PERSONAL not in context.state.array_records:
        return None
    return {name: array.numpy() for name, array in context.state.array_records[PERSONAL].items()}


def _arrays(message: Message, record: str = "arrays") -> tasks.Arrays:
    return {name: array.numpy() for name, array in message.content.array_records[record].items()}


def _control(message: Message, arrays: tasks.Arrays) -> tasks.Arrays | None:
    """Return the arrays that SCAFFOLD adds to each gradient; None if the message holds none.

    Raises
    ------
    ValueError
        If the names or shapes of these arrays are not those of the model.
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
    """Return the L2 norm of the difference between two models."""
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


def _names(config: ConfigRecord, count: int) -> list[str]:
    """Return the names of ``count`` groups; a message without names means the names "0", "1", ...."""
    names = config.get(GROUP_NAMES, [])
    if not isinstance(names, list) or len(names) not in (0, count):
        raise ValueError(f"{GROUP_NAMES} = {names!r} in the message's config: must be {count} names")
    return [str(name) for name in names] or [str(number) for number in range(count)]
