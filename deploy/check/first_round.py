"""`python -m deploy.check.first_round`: one client of an app trains; prints as JSON what it reports.

The app's ServerApp runs until it sends its first TRAIN message, which holds the initial model. One client
gets this message, and then the questions that selectors ask.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from deploy.check.requirements import ARRAYS, designs_of, missing
from simulation.grid import InProcessGrid
from strategies import extensions
from strategies.clients.printable import counted, printable
from strategies.clients.reports import GROUP, INVITATION, LOSS, NORM, REPORT_VARIANCE, STATUS, UPDATE
from strategies.flower.arrays import ReceivedArrays, of_kind
from strategies.flower.messages import lacks_handler, loss_name, question, read_report, read_usable
from strategies.half_precision import HALF
from strategies.rounds.aggregation import Model, Update
from strategies.selectors.registry import available, selector_type

_LOOKS = 5  # a ServerApp that looks for nodes more often before it sends a message waits for more of them
_LONGEST = 200  # characters of an app's error
_GROUPS = {"num-groups": 2, "epsilon": 1.0, "group-names": ["0", "1"]}


class _FirstTraining(BaseException):
    """Ends the ServerApp. No `except Exception` of an app catches it."""


class _Grid(InProcessGrid):
    """Keeps the first TRAIN message instead of sending it."""

    first: Message | None = None
    _looks = 0

    def get_node_ids(self) -> list[int]:
        nodes, self._looks = super().get_node_ids(), self._looks + 1
        if self._looks > _LOOKS and self.first is None:
            raise ValueError(
                f"it waits for more than {counted(len(nodes), 'client')}, see the option --clients"
            )
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages, self._looks = list(messages), 0
        for message in messages:
            if self.first is None and message.metadata.message_type == MessageType.TRAIN:
                self.first = message
                raise _FirstTraining
        return super().push_messages(messages)


class _FirstRound:
    """The first round of an app, with one client.

    ``app`` holds the ``clientapp`` and the ``serverapp``, each MODULE:ATTRIBUTE, the run ``config``, and the
    number of ``clients``. All errors of the app are ValueErrors, each in one line.
    """

    def __init__(self, app: Mapping[str, Any]) -> None:
        self.answers: dict[str, set[str]] = {}  # as `missing` takes them
        self.reported: dict[str, str] = {}  # the reply to each type of message, as the command prints it
        self.without: list[str] = []  # the types of messages for which the app has no handler
        self._failure: BaseException | None = None  # the last exception of the ClientApp
        self._client, server = _imported(app["clientapp"], app["serverapp"])
        if getattr(server, "_main", server) is None:
            needed = "Cohort's strategies need it, and a ClientApp with @app.train()"
            raise ValueError(f"the ServerApp has no function @app.main(): {needed}")
        nodes = [{"partition-id": i, "num-partitions": app["clients"]} for i in range(app["clients"])]
        self._grid = _Grid(self._call, nodes, run_config=app["config"])
        try:
            server(self._grid, Context(1, 0, {}, RecordDict(), dict(app["config"])))
        except _FirstTraining:
            pass
        except (Exception, SystemExit) as error:
            raise ValueError(f"the ServerApp fails before the first training: {_short(error)}") from None
        if self._grid.first is None:
            raise ValueError("the ServerApp ends before the first training: it sends no TRAIN message")
        self._content = self._grid.first.content
        self._train()
        self._ask(MessageType.EVALUATE)
        self._ask(STATUS)
        if "loss" not in self.answers.get(MessageType.EVALUATE, ()):
            self._ask(LOSS)
            self.answers.setdefault(MessageType.EVALUATE, set()).update(self.answers.get(LOSS, ()))
        self._ask(NORM, **{REPORT_VARIANCE: True})
        self._ask(UPDATE, **{REPORT_VARIANCE: True})
        self._ask(GROUP, **_GROUPS)
        self._ask(INVITATION, rates=[0.5, 0.5], **_GROUPS)

    def _call(self, message: Message, context: Context) -> Message:
        try:
            reply: Message = self._client(message, context)
        except (Exception, SystemExit) as error:
            self._failure = error
            raise
        return reply

    def _train(self) -> None:
        reply = self._ask(MessageType.TRAIN, **{REPORT_VARIANCE: True})
        if reply.has_error():
            raise ValueError(f"the ClientApp fails in training: {_short(self._failure)}")
        model = next(iter(of_kind(self._content, ArrayRecord).values()), ArrayRecord())
        read = read_usable(reply, model, "num-examples")
        if read.arrays is None:
            raise ValueError(f"the reply of @app.train() cannot be used: {read.failure}")
        if read.report.num_examples is None:
            raise ValueError(
                "the reply of @app.train() has no num-examples, the number of the client's samples, but "
                f'{", ".join(read.metrics) or "arrays only"}: add MetricRecord({{..., "num-examples": ...}})'
            )
        norm = Model(dict(ReceivedArrays(model))).examine(Update(read.arrays))
        size = counted(len(read.arrays), "array")
        if HALF not in self._content:  # otherwise the arrays are those on the wire
            size += f", norm of the update {norm:.4g}"
        self.reported[MessageType.TRAIN] += f"; {size}"

    def _ask(self, kind: str, **config: Any) -> Message:
        """Send a message with the content of the first TRAIN message, and note the reply."""
        given = {name: each for name, each in of_kind(self._content, ConfigRecord).items() if name != HALF}
        key = next(iter(given), "config")
        entries = ConfigRecord({"seed": 1, "server-round": 1, **config, **given.get(key, {})})
        content = RecordDict({**self._content, key: entries})
        node = self._grid.get_node_ids()[0]
        (reply,) = self._grid.send_and_receive([question(kind, node, 3600.0, content, 1)])
        if lacks_handler(reply):
            self.without.append(kind)
        elif reply.has_error():
            self.reported[kind] = f"fails: {_short(self._failure)}"
        else:
            report = read_report(reply.content).model_dump(by_alias=True, exclude_none=True)
            records = of_kind(reply.content, MetricRecord).values()
            metrics = {name: value for each in records for name, value in each.items()}
            named = {name.replace("_", "-") for name in metrics}
            others = {name: value for name, value in report.items() if name not in named}
            self.reported[kind] = ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in (metrics | others).items()
                if name != "available"
            )
            self.answers[kind] = report.keys() | ({ARRAYS} if of_kind(reply.content, ArrayRecord) else set())
            if kind == MessageType.EVALUATE and loss_name(metrics, None):
                self.answers[kind].add("loss")
        return reply


def _imported(*names: str) -> list[Any]:
    """Return the objects with the names MODULE:ATTRIBUTE. As in Flower, this folder is searched first."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        extensions.name_modules([name.partition(":")[0] for name in names])
        return [attrgetter(name.partition(":")[2])(import_module(name.partition(":")[0])) for name in names]
    except (AttributeError, ValueError) as error:
        raise ValueError(f"the app cannot be imported: {_short(error.__cause__ or error)}") from None


def _short(error: BaseException | None) -> str:
    """Return an error of the app in one line, with the last place in the app's own code."""
    text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    own = [
        f" ({Path(frame.filename).relative_to(Path.cwd())}, line {frame.lineno})"
        for frame in frames
        if Path(frame.filename).is_relative_to(Path.cwd()) and "site-packages" not in frame.filename
    ]
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…") + (own or [""])[-1]


def main() -> None:
    """Read an app from stdin, and write what is found to stdout, to which the app itself cannot write."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        first = _FirstRound(json.load(sys.stdin))
        kinds = [selector_type(name) for name in available()]
        found: dict[str, Any] = {
            "reported": first.reported | ({"no handler": ", ".join(first.without)} if first.without else {}),
            "selectors": [(kind.name, missing(kind, first.answers), designs_of(kind)) for kind in kinds],
        }
    except ValueError as error:
        found = {"error": str(error)}
    with out:
        json.dump(found, out)
    os._exit(0)  # threads of the app do not keep this process alive


if __name__ == "__main__":
    main()
