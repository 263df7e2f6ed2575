"""The settings of a run: read from Flower's run config, and checked before anything starts."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from flwr.serverapp.strategy import Strategy
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

import tasks
from strategies import Reporter, SelectionStrategy
from strategies.json_text import parse_json
from strategies.options import (
    LEVELS,
    Budgets,
    Buffered,
    Deadlines,
    Eligibility,
    Faults,
    Level,
    Overrides,
    Polling,
    read_rates,
)
from strategies.options.buffered import MOST_CLIENTS, MOST_STEPS
from strategies.selectors import available, selector_type, settings_of_run
from strategies.selectors.checks import did_you_mean
from strategies.selectors.settings import Schedule
from strategies.server_steps.named import create_server_strategy
from tasks.partitions import parse

from .tracking import check_trackers, reporters_of, tracker_names

SettingValue = str | int | float | bool
CHECKPOINTS = "checkpoints"  # the folder of a run's checkpoints, inside output-dir
# Settings that a resume may change. A change affects only the rounds after the resume.
MAY_CHANGE = {
    *("num_rounds", "poll_interval", "target_accuracy", "client_sizes", "removed_clients", "eligible"),
    "priorities",
    *("round_deadline", "join_deadline", "absence_deadline", "status_deadline", "shortest_deadline"),
    "track",
}
# Entries of the history's first line that describe one start only, so they may differ at a resume.
OF_THE_START = {
    *("type", "version", "started", "flwr", "output_dir", "data_dir", "availability_trace", "device_speeds"),
    "resume",
}


def parse_settings(text: str, of: str = "selector-settings") -> dict[str, Any]:
    """Read "alpha=0.4 learning-rate-multiplier=100" as settings by name, with blanks or commas between them.

    Values are JSON scalars (0.4, 100, true); True and False count as true and false. A value that is not
    JSON is taken as text. ``of`` is the setting of the run that holds the text, for error messages.

    Raises
    ------
    ValueError
        If an entry is not of the form name=value, or its value is a JSON list, a JSON object or null.
    """
    settings: dict[str, Any] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{of} = {text!r}: {part!r} must be of the form name=value")
        try:
            parsed = parse_json(value.lower() if value in ("True", "False") else value)
        except ValueError:
            parsed = value
        if not isinstance(parsed, SettingValue):
            raise ValueError(f"{of} = {text!r}: {part!r}: the value must be a number, true, false or text")
        settings[name.replace("-", "_")] = parsed
    return settings


PRIORITIES = ("shares", "group_shares", "every")
"""The fields of `Overrides` that the file ``priorities`` may hold."""
# A group of options of the strategy -> its class, and for each option the setting of the run that sets it.
GROUPS: dict[str, tuple[type[Any], dict[str, str]]] = {
    "faults": (
        Faults,
        {name: name for name in ("quorum", "over_selection", "correction", "guard", "silence")},
    ),
    "deadlines": (
        Deadlines,
        {name: f"{name}_deadline" for name in ("round", "join", "absence", "status", "shortest")},
    ),
    "mode": (
        Buffered,
        {
            "size": "buffer_size",
            **{name: name for name in ("concurrency", "max_staleness", "staleness_power", "count_busy")},
        },
    ),
    "polling": (Polling, {"interval": "poll_interval"}),
}
# A name in the error messages of the strategy -> the name of this setting in the run config. Not listed are
# names that differ in their dashes only.
_NAMES = {
    **{
        f"{group}.{option}": setting.replace("_", "-")
        for group, (_, settings) in GROUPS.items()
        for option, setting in settings.items()
    },
    "min_available_clients": "num-clients",
    "overrides.settings": "client-settings",
    "overrides.sizes": "client-sizes",
    "overrides.removed": "removed-clients",
    **{f"overrides.{name}": f"priorities.{name}" for name in PRIORITIES},
    "checkpoints.folder": "output-dir",
    "mode = Buffered(...)": "mode = 'buffered'",
    "mode=None": "mode = 'rounds'",
}


def _learning_rate(value: Any) -> Any:
    if value == "":  # `from_run_config` has replaced "" by the task's rate, unless the task is unknown
        return ""
    if isinstance(value, str):
        return read_rates("", value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError('must be a number, or a schedule such as "0.5@1/0.25@150"')
    if not isfinite(value):
        raise ValueError("must be a finite number")
    if value <= 0:
        raise ValueError("must be greater than 0")
    return value


def _budget(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('must be a number, or a schedule such as "20@1/5@50"')


def _guard(value: Any) -> Level | Literal[False]:
    """Return the level of the guard; true counts as the default level."""
    if value is True:
        return "sane"
    if value is not False and value not in LEVELS:
        raise ValueError(f"must be {' or '.join(map(repr, LEVELS))}, or false for no guard")
    level: Level | Literal[False] = value
    return level


def _checked_by(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator of a setting: it accepts a value if ``check`` raises no ValueError.

    If the message of the error is "name = value: reason", only the reason is kept.
    """

    def accepted(value: Any) -> Any:
        try:
            check(value)
        except ValueError as error:
            message, _, reason = str(error).partition(": ")
            raise ValueError(reason or message) from None
        return value

    return AfterValidator(accepted)


def _option(group: str, option: str) -> AfterValidator:
    """Return a validator of a setting: it accepts a value if the strategy's option does."""
    kind = GROUPS[group][0]
    return _checked_by(lambda value: kind(**{option: value}))


Count = Annotated[int, Field(ge=1, lt=2**63)]
"""A number of things, from 1 to the largest integer that Flower's run config holds."""


class RunSettings(BaseModel):
    """Every setting of a run. Names and defaults are in pyproject.toml, [tool.flwr.app.config]."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,  # otherwise true would count as 1
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
    )

    selector: str
    selector_settings: str
    design: str  # "": the selector's own
    num_clients: Count
    num_rounds: Count
    clients_per_round: Count
    budget: Annotated[Any, _checked_by(_budget)]  # a number, or text: a schedule
    task: Annotated[str, _checked_by(tasks.learning_rate)]
    partition: Annotated[str, _checked_by(parse)]
    data_dir: str
    learning_rate: Annotated[Any, _checked_by(_learning_rate)]  # a number, or text: a schedule
    local_steps: Count
    batch_size: Count
    seed: int = Field(ge=0, lt=2**63)
    quorum: Annotated[int, _option("faults", "quorum")]
    over_selection: Annotated[float, _option("faults", "over_selection")]
    server_strategy: str
    variates: Literal["", "fedvarp", "fedvarp-mean", "scaffold"]
    proximal_mu: float = Field(ge=0)
    personal_mu: float = Field(gt=0)
    personal_holdout: float = Field(gt=0, lt=1)
    masked_updates: bool
    wire: Literal["float32", "float16"]
    correction: Literal["equal", "rates"]
    mode: Literal["rounds", "buffered"]
    concurrency: int = Field(ge=0, le=MOST_CLIENTS)  # 0 with mode = "rounds"
    buffer_size: int = Field(ge=0, le=MOST_CLIENTS)  # 0: clients-per-round
    max_staleness: int = Field(ge=0, le=MOST_STEPS)
    staleness_power: float = Field(ge=0, le=10)
    count_busy: bool
    client_sizes: str
    client_settings: str
    priorities: str
    removed_clients: str
    eligible: Annotated[str, _checked_by(lambda text: text and Eligibility.parse(text))]
    guard: Annotated[Any, AfterValidator(_guard)]  # a level, or False
    silence: bool
    round_deadline: Annotated[float, _option("deadlines", "round")]  # s
    join_deadline: Annotated[float, _option("deadlines", "join")]  # s
    absence_deadline: Annotated[float, _option("deadlines", "absence")]  # s
    status_deadline: Annotated[float, _option("deadlines", "status")]  # s
    shortest_deadline: Annotated[float, _option("deadlines", "shortest")]  # s
    poll_interval: float = Field(ge=0.01, le=60)  # s
    evaluate_every: Count
    evaluate_share: float = Field(ge=0, le=1)
    target_accuracy: float = Field(ge=0, le=1)
    availability: str  # only for a batched simulation; the ServerApp refuses it
    availability_trace: str  # only for a batched simulation; the ServerApp refuses it
    response_times: str  # only for a batched simulation; the ServerApp refuses it
    device_speeds: str  # only for a batched simulation; the ServerApp refuses it
    track: Annotated[str, _checked_by(tracker_names)]
    output_dir: str
    resume: bool

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> "RunSettings":
        """Check a run config.

        The learning rate "" is replaced by the default of the task, so that the history holds the number.

        Raises
        ------
        ValueError
            If a setting is wrong, or two settings do not go together. The message names each wrong setting,
            its value and what is allowed.
        """
        config, task = dict(config), config.get("task")
        if config.get("learning-rate") == "" and task in tasks.available():
            config["learning-rate"] = tasks.learning_rate(task)
        try:
            settings = cls.model_validate(config)
        except ValidationError as error:
            raise ValueError("\n".join(_explain(details) for details in error.errors())) from None
        if settings.clients_per_round > settings.num_clients:
            raise ValueError(
                f"clients-per-round = {settings.clients_per_round}: must be between 1 and "
                f"{settings.num_clients} (the number of clients)"
            )
        if settings.resume and not settings.output_dir:
            raise ValueError("resume = True: needs output-dir, the folder of the run to resume")
        if settings.evaluate_every > 1 and settings.evaluate_share:
            raise ValueError(
                f"evaluate-every = {settings.evaluate_every}: must be 1 with evaluate-share = "
                f"{settings.evaluate_share:g}, since clients evaluate the model in every round"
            )
        if settings.track and not settings.output_dir:
            raise ValueError(f"track = {settings.track!r}: needs output-dir, the folder of the run")
        check_trackers(settings.track)
        if settings.wire == "float16" and settings.masked_updates:
            raise ValueError(
                "wire = 'float16': must be 'float32' with masked-updates = True: rounded masks do not cancel"
            )
        if settings.mode == "rounds":
            for name, value in (("concurrency", settings.concurrency), ("buffer-size", settings.buffer_size)):
                if value:
                    raise ValueError(f"{name} = {value}: needs mode = 'buffered'")
        elif not settings.concurrency:
            raise ValueError(
                "concurrency = 0: must be at least 1 with mode = 'buffered': how many clients train at once"
            )
        polls_for = selector_type(settings.selector).polls_for if settings.selector in available() else ()
        if "gradient_variance" in polls_for and settings.local_steps == 1:
            raise ValueError(
                f"local-steps = 1: must be at least 2 with selector = {settings.selector!r}, which needs the "
                "variance of gradients over the steps; or use selector = 'fed-is', which does not"
            )
        try:
            settings.budgets.check(settings.quorum, settings.num_clients)
            settings.strategy()
        except (TypeError, ValueError) as error:
            raise ValueError(_in_names_of_the_run(str(error))) from None
        return settings

    def strategy(self, **more: Any) -> SelectionStrategy:
        """Return the strategy of the run; ``more`` are arguments that the settings do not determine.

        Raises
        ------
        TypeError, ValueError
            If settings do not fit together, or a file that they name cannot be read.
        """
        return SelectionStrategy(
            self.selector,
            clients_per_round=self.clients_per_round,
            num_rounds=self.num_rounds,
            min_available_clients=self.num_clients,
            local_learning_rate=self.learning_rate,
            deadlines=self._group("deadlines"),
            polling=self._group("polling", ask_status=True, poll_with="query"),
            **self.strategy_options,
            **more,
        )

    def _group(self, name: str, **more: Any) -> Any:
        """Return a group of options with the values of the settings, and with ``more`` options."""
        kind, settings = GROUPS[name]
        return kind(**{option: getattr(self, setting) for option, setting in settings.items()} | more)

    @property
    def strategy_options(self) -> dict[str, Any]:
        """The arguments that `SelectionStrategy` and the simulator share.

        Each access reads the files of client sizes and client settings again.
        """
        return {
            "selector_settings": settings_of_run(self.selector, self._of_selector(), self.local_steps),
            "server_strategy": self._server_strategy(),
            "seed": self.seed,
            "budget": self.budgets.budget,
            "faults": self.faults,
            "overrides": Overrides(
                read_client_sizes(self.client_sizes),
                read_client_settings(self.client_settings),
                removed=self.removed_clients or (),
                **read_priorities(self.priorities),
            ),
            "variates": self.variates or None,
            "masked_updates": self.masked_updates,
            "eligible": self.eligible or None,
            "mode": self.buffered,
        }

    def _of_selector(self) -> dict[str, Any]:
        """Return the given settings of the selector, with `design` if it is set."""
        given = parse_settings(self.selector_settings)
        if self.design and given.get("design", self.design) != self.design:
            raise ValueError(
                f"design = {self.design!r}: must be left out, or that in selector-settings = "
                f"{self.selector_settings!r}"
            )
        return given | ({"design": self.design} if self.design else {})

    def evaluates(self, number: int) -> bool:
        """Return whether the model is evaluated on the test data after this round; 0 is before training."""
        return number % self.evaluate_every == 0 or number == self.num_rounds

    def ends_early(self, accuracy: float) -> bool:
        """Return whether a run whose model has this test accuracy ends before its last round."""
        return 0 < self.target_accuracy <= accuracy

    def reporters(self) -> list[Reporter]:
        """Return new reporters of the run; none if the run has no folder."""
        if not self.output_dir:
            return []
        folder = Path(self.output_dir).absolute()
        return reporters_of(tracker_names(self.track), folder, self.model_dump())

    def _server_strategy(self) -> Strategy:
        name, _, settings = self.server_strategy.partition(":")
        steps = self.learning_rates.steps
        return create_server_strategy(
            name,
            parse_settings(settings, f"server-strategy = {self.server_strategy!r}: its settings"),
            learning_rate=steps[0][1] if len(steps) == 1 else None,
            proximal_mu=self.proximal_mu,
            fraction_evaluate=self.evaluate_share,
        )

    @property
    def budgets(self) -> Budgets:
        """The budget K(t) of each round t."""
        return Budgets(self.clients_per_round, None if self.budget == "" else self.budget)

    @property
    def buffered(self) -> Buffered | None:
        """How rounds are buffered; None if they are not."""
        if self.mode == "rounds":
            return None
        buffered: Buffered = self._group("mode", size=self.buffer_size or None)
        return buffered

    @property
    def learning_rates(self) -> Schedule:
        """The clients' learning rate in each round."""
        return read_rates("learning-rate", self.learning_rate)

    @property
    def train_config(self) -> dict[str, int | float]:
        """The config of every TRAIN message. A learning rate that has a schedule is added by the strategy."""
        config: dict[str, int | float] = {"local-steps": self.local_steps, "batch-size": self.batch_size}
        if not isinstance(self.learning_rate, str):
            config["learning-rate"] = float(self.learning_rate)
        if mu := self.proximal_mu or getattr(self._server_strategy(), "proximal_mu", 0.0):
            config["proximal-mu"] = mu
        if selector_type(self.selector).part_names:
            config |= {"personal-mu": self.personal_mu, "personal-holdout": self.personal_holdout}
        return config

    @property
    def faults(self) -> Faults:
        """How a round treats missing and bad replies."""
        faults: Faults = self._group("faults")
        return faults


def read_client_sizes(path: str) -> dict[str, float]:
    """Return the declared client sizes in a file, by identity; none for the path "".

    Raises
    ------
    ValueError
        If the file cannot be read, or does not map identities to numbers.
    """
    sizes = _read_object("client-sizes", path)
    if not all(type(size) in (int, float) for size in sizes.values()):
        raise ValueError(f'client-sizes = {path!r}: must be of the form {{"client-00": 120, ...}}')
    return sizes


def read_client_settings(path: str) -> dict[str, dict[str, Any]]:
    """Return the selector's settings per client in a file, by setting and identity; none for the path "".

    Raises
    ------
    ValueError
        If the file cannot be read, or does not map names of settings to objects.
    """
    settings = _read_object("client-settings", path)
    if not all(isinstance(values, dict) for values in settings.values()):
        raise ValueError(
            f'client-settings = {path!r}: must be of the form {{"lipschitz": {{"client-00": 3.5, ...}}, ...}}'
        )
    return settings


def read_priorities(path: str) -> dict[str, Any]:
    """Return the declared shares and the clients that train regularly, by the names of `Overrides`.

    Raises
    ------
    ValueError
        If the file cannot be read, or holds anything but ``shares``, ``group_shares`` and ``every``.
    """
    found = _read_object("priorities", path)
    for name in found.keys() - set(PRIORITIES):
        raise ValueError(f"priorities = {path!r}: has {name!r}: must have only {', '.join(PRIORITIES)}")
    return found


def _read_object(name: str, path: str) -> dict[str, Any]:
    if not path:
        return {}
    # A resume takes the path from a history, which a stranger may have written: /dev/zero would never end.
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{name} = {path!r}: must be a file")
    try:
        found = parse_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} = {path!r}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} = {path!r}: must hold a JSON object")
    return found


def check_same_run(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a run if settings have changed, except those in `MAY_CHANGE` and `OF_THE_START`.

    ``before`` is the ``run`` line of the history to be resumed, ``now`` that of a new run with the present
    settings. Settings that ``before`` lacks are not compared.

    Raises
    ------
    ValueError
        The message has a line for each changed setting, with its value now and in the run to be resumed.
    """
    differences = [
        f"{name.replace('_', '-')} = {now.get(name)!r}: the run to be resumed has {value!r}"
        for name, value in before.items()
        if name not in MAY_CHANGE | OF_THE_START and now.get(name) != value
    ]
    if differences:
        raise ValueError("\n".join(differences))


def _explain(details: Any) -> str:
    """Turn one pydantic error into "name = value: what is allowed"."""
    name = ".".join(str(part) for part in details["loc"])
    if details["type"] == "missing":
        return f"{name}: missing from the run config"
    if details["type"] == "extra_forbidden":
        return f"{name} = {details['input']!r}: {_why_unknown(name, details['input'])}"
    reason = details["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("should", "must")
    return f"{name} = {details['input']!r}: {reason}"


_OTHER_WORDS = {
    "lr": "learning-rate",
    "epochs": "local-steps",
    "local-epochs": "local-steps",
    "fraction-train": "clients-per-round",
    "num-supernodes": "num-clients",
    "num-server-rounds": "num-rounds",
    "strategy": "server-strategy",
    "dataset": "task",
    "model": "task",
}
"""Words that other programs use for a setting -> the setting."""


def _why_unknown(name: str, value: Any) -> str:
    """Return the end of the message about an unknown setting: which setting the user may have meant."""
    key = name.replace("-", "_")
    if owners := [each for each in available() if key in selector_type(each).settings_type.allowed()]:
        return (
            f"not a setting of the run, but of {', '.join(owners)}; write it into selector-settings, or with "
            f"`cohort up` and `cohort simulate` use --selector {owners[0]}:{key}={value}"
        )
    if name in _OTHER_WORDS:
        return f"unknown setting (did you mean {_OTHER_WORDS[name]}?)"
    known = [field.alias or key for key, field in RunSettings.model_fields.items()]
    return f"unknown setting{did_you_mean(name, known) or '; the settings are ' + ', '.join(known)}"


@contextmanager
def errors_in_names_of_the_run() -> Iterator[None]:
    """Inside a `with` block, let errors of the strategy name the run's settings instead of its parameters."""
    try:
        yield
    except Exception as error:
        error.args = tuple(
            _in_names_of_the_run(each) if isinstance(each, str) else each for each in error.args
        )
        raise


def _in_names_of_the_run(message: str) -> str:
    """Replace the names of the strategy's parameters in a message by the names of the run's settings."""

    def renamed(found: re.Match[str]) -> str:
        return found["value"] or _NAMES.get(found[0]) or found[0].replace("_", "-")

    names = "|".join([*map(re.escape, _NAMES), *(name for name in RunSettings.model_fields if "_" in name)])
    value = r"""(?P<value>(?:= |\[)(?:'[^']*'|"[^"]*"))"""  # stays as the user wrote it
    pattern = rf"{value}|(?<![\w./])(?:{names})(?![\w/])"
    return re.sub(pattern, renamed, message).replace("() with", " with")
