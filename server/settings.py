"""The settings of a run: read from Flower's run config, checked before anything starts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

import tasks
from strategies.options import Deadlines, Faults, Overrides, Polling, check_selector
from strategies.selectors import selector_type
from tasks.partitions import parse

SettingValue = str | int | float | bool
CHECKPOINTS = "checkpoints"  # folder of a run's checkpoints, below output-dir
# Settings that a resume may change, since they affect no earlier round.
MAY_CHANGE = {
    *("num_rounds", "poll_interval", "target_accuracy", "client_sizes", "removed_clients"),
    *("round_deadline", "join_deadline", "absence_deadline", "status_deadline"),
}
OF_THE_START = {
    "type",
    "version",
    "started",
    "flwr",
    "output_dir",
    "data_dir",
    "resume",
}  # folders may have moved


def parse_selector_settings(text: str) -> dict[str, Any]:
    """Read "alpha=0.4 learning-rate-multiplier=100" as a selector's settings.

    Values are JSON scalars (0.4, 100, true); anything else is a string.

    Raises
    ------
    ValueError
        If a part is not of the form name=value.
    """
    settings: dict[str, Any] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise ValueError(f"selector-settings = {text!r}: {part!r} must be of the form name=value")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        if not isinstance(parsed, SettingValue):
            raise ValueError(f"selector-settings = {text!r}: {part!r} must have a plain value")
        settings[name.replace("-", "_")] = parsed
    return settings


def _known_task(name: str) -> str:
    if name not in tasks.available():
        raise ValueError(f"must be one of {', '.join(tasks.available())}")
    return name


def _known_partition(text: str) -> str:
    parse(text)
    return text


def checked_by(options: type[Deadlines] | type[Faults], name: str) -> AfterValidator:
    """Let the options object that takes the value check it."""

    def check(value: Any) -> Any:
        try:
            options(**{name: value})
        except ValueError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        return value

    return AfterValidator(check)


class RunSettings(BaseModel):
    """Every setting of a run; names and defaults stand in pyproject.toml, [tool.flwr.app.config]."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,  # else true would pass for 1
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
    )

    selector: str
    selector_settings: str
    num_clients: int = Field(ge=1)
    num_rounds: int = Field(ge=1)
    clients_per_round: int = Field(ge=1)
    task: Annotated[str, AfterValidator(_known_task)]
    partition: Annotated[str, AfterValidator(_known_partition)]
    data_dir: str
    learning_rate: float = Field(gt=0)
    local_steps: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    seed: int = Field(ge=0, lt=2**63)
    quorum: Annotated[int, checked_by(Faults, "quorum")]
    over_selection: Annotated[float, checked_by(Faults, "over_selection")]
    correction: Annotated[Literal["equal", "rates"], checked_by(Faults, "correction")]
    client_sizes: str
    removed_clients: str
    guard: bool
    round_deadline: Annotated[float, checked_by(Deadlines, "round")]  # s
    join_deadline: Annotated[float, checked_by(Deadlines, "join")]  # s
    absence_deadline: Annotated[float, checked_by(Deadlines, "absence")]  # s
    status_deadline: Annotated[float, checked_by(Deadlines, "status")]  # s
    poll_interval: float = Field(ge=0.01, le=60)  # s
    target_accuracy: float = Field(ge=0, le=1)
    output_dir: str
    resume: bool

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> "RunSettings":
        """Check a run config.

        Raises
        ------
        ValueError
            One line for each wrong setting: its name, its value and what is allowed.
        """
        try:
            settings = cls.model_validate(dict(config))
        except ValidationError as error:
            raise ValueError("\n".join(_explain(details) for details in error.errors())) from None
        if settings.clients_per_round > settings.num_clients:
            raise ValueError(
                f"clients-per-round = {settings.clients_per_round}: must be between 1 and "
                f"{settings.num_clients} (the number of clients)"
            )
        if settings.resume and not settings.output_dir:
            raise ValueError("resume = True: needs output-dir, the folder of the run to resume")
        try:
            check_selector(
                settings.selector,
                settings.clients_per_round,
                parse_selector_settings(settings.selector_settings),
                settings.num_rounds,
            )
            kind = selector_type(settings.selector)
            Overrides().check(kind)
            settings.faults.check(kind, settings.clients_per_round)
        except (TypeError, ValueError) as error:
            raise ValueError(str(error).removeprefix("faults.")) from None
        return settings

    @property
    def deadlines(self) -> Deadlines:
        """How long the run waits."""
        return Deadlines(
            join=self.join_deadline,
            absence=self.absence_deadline,
            round=self.round_deadline,
            status=self.status_deadline,
        )

    @property
    def polling(self) -> Polling:
        """How often the run looks for replies."""
        return Polling(interval=self.poll_interval)

    @property
    def faults(self) -> Faults:
        """What a round does about missing and bad replies."""
        return Faults(
            quorum=self.quorum,
            over_selection=self.over_selection,
            correction=self.correction,
            guard=self.guard,
        )


def read_client_sizes(path: str) -> dict[str, float]:
    """Read the client sizes that the operator declares, by identity; "" declares none.

    Raises
    ------
    ValueError
        If the file cannot be read or has another form.
    """
    if not path:
        return {}
    try:
        sizes = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"client-sizes = {path!r}: cannot be read: {error}") from error
    if not isinstance(sizes, dict) or not all(type(size) in (int, float) for size in sizes.values()):
        raise ValueError(f'client-sizes = {path!r}: must be of the form {{"client-00": 120, ...}}')
    return sizes


def check_same_run(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings; `MAY_CHANGE` lists those that may change.

    Parameters
    ----------
    before, now : mapping
        ``run`` lines of a history. Settings that ``before`` lacks are not compared.

    Raises
    ------
    ValueError
        One line for each setting: its name, its value and that of the run.
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
        known = ", ".join(field.alias or key for key, field in RunSettings.model_fields.items())
        return f"{name} = {details['input']!r}: unknown setting; the settings are {known}"
    reason = details["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("should", "must")
    return f"{name} = {details['input']!r}: {reason}"
