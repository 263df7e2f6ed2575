"""Report: the schema of what a client reports about itself; the client and the server use the same schema.

Every field is optional, so that a ClientApp of another project may report ``num-examples`` alone.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from .printable import LONGEST_NAME, printable

METRICS = "metrics"
"""Key of the MetricRecord with the numbers, as in Flower's own examples."""
IDENTITY = "identity"
"""Key of the ConfigRecord with ``client-id`` and ``group``, since a MetricRecord cannot hold text."""

PROPERTIES = "properties"
"""Key of the ConfigRecord with the client's properties, each of which may be text, a number, or a list."""

STATUS = "query.status"
"""Message type that asks a client for its identity, data size and availability."""
LOSS = "query.loss"
"""Message type that asks for the loss of the message's model, on all samples or on ``batch-size`` samples."""
UPDATE = "query.update"
"""Message type that asks a client to train as for TRAIN and to reply with the trained model and
``update-norm``. It is for selectors that must know all updates before they select."""
NORM = "query.norm"
"""Message type that asks a client to train as for TRAIN and to report ``update-norm``, without the update."""
GROUP = "query.group"
"""Message type that asks for the client's private group; the client answers by randomised response."""
INVITATION = "query.invitation"
"""Message type that carries ``rates``: the probability with which the clients of each group accept."""

LEARNING_RATE = "learning-rate"
"""TRAIN config: the rate of the client's SGD in this round, if the server has a schedule of rates."""
GROUP_NAMES = "group-names"
"""Config: the names of the private groups, in the order of every list with one number per private group."""
REPORT_VARIANCE = "report-gradient-variance"
"""TRAIN config: the client must report ``gradient-variance``."""
REPORT_NORM = "report-update-norm"
"""TRAIN config: the client must report ``update-norm``, since the server does not see the update."""
UPDATE_WEIGHT = "update-weight"
"""TRAIN config: the client multiplies its update by this number before it masks the update."""
PART_SCALES = "part-scales"
"""TRAIN config: one number for each part of the update. The client multiplies each part by its number, and
sends the sum of the products."""
UPDATE_SCALES = "update-scales"
"""TRAIN config: one number per private group. The client multiplies its update by its group's number."""

_NAMES = {"client_id", "group"}  # fields that may be text
_MOST_PROPERTIES = 32  # the most properties of a client, and the most tags
_MOST_TEXT = 8192  # the most bytes of a client's properties as JSON; every checkpoint holds them
_MOST = 1e12  # the largest number of samples, steps or parts, and the largest cost or energy


def _plain(name: str) -> str:
    """Refuse a name with blanks at its ends, or with characters that cannot be seen."""
    if not (name.isprintable() and name == name.strip()):
        raise ValueError("must be printable, without blanks at its ends")
    return name


def _ascii(name: str) -> str:
    """Refuse letters that look like other letters, such as a Cyrillic "a"."""
    if not name.isascii():
        raise ValueError("must be ASCII")
    return name


def _few(properties: Any) -> Any:
    """Refuse too many properties before each is checked: one error for each would take seconds and memory."""
    if isinstance(properties, Mapping) and len(properties) > _MOST_PROPERTIES:
        raise ValueError(f"must be {_MOST_PROPERTIES} properties at most")
    return properties


def _short(properties: dict[str, Any]) -> dict[str, Any]:
    """Refuse properties that would make each checkpoint much larger."""
    if len(json.dumps(properties)) > _MOST_TEXT:
        raise ValueError(f"must have {_MOST_TEXT} bytes at most as JSON")
    return properties


_Name = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_plain)]
_Property = (
    StrictBool | StrictInt | StrictFloat | _Name | Annotated[list[_Name], Field(max_length=_MOST_PROPERTIES)]
)


class Report(BaseModel):
    """The report of a client.

    Attributes
    ----------
    client_id : str or None
        The durable identity that the client claims; a registered name takes precedence. Up to 128 printable
        ASCII characters, without blanks at the ends.
    group : str, int or None
        The client's group, for selectors with groups. Text has up to 128 printable characters. The number 3
        and the text "3" name the same group.
    cost, energy : float or None
        The client's cost and energy for one round, in units that the operator chooses, in [0, 1e12]. FLICS
        limits the totals by its budgets.
    num_examples : float or None
        The number of training samples that the client holds, in (0, 1e12].
    num_steps : int or None
        The number of local steps that the client took, in [1, 1e12].
    learning_rate : float or None
        The learning rate of the local steps, > 0.
    train_loss : float or None
        The mean local training loss, finite. A negative log-likelihood of densities may be below 0.
    loss : float or None
        The mean loss of the received model before training; finite.
    gradient_variance : float or None
        σ² >= 0: the sum of the squared distances of n mini-batch gradients from their mean, divided by n - 1.
    update_norm : float or None
        The L2 norm ||w_m - w_t|| >= 0 of the arrays in the reply, not divided by a learning rate. The server
        measures the norm, too; a difference that rounding does not explain is an offence. With
        ``masked_updates`` the client computes the norm before it applies the weight and the mask, and the
        server cannot measure it. This field is also the answer to ``query.norm``.
    num_parts : int or None
        The number of parts of the update, in [1, 1e12]. The client multiplied each part by the part's number
        in ``part-scales``.
    model_norm, personal_norm : float or None
        The L2 norms >= 0 of the two parts of an update of ``personalised-osmd``, in the unit of
        ``update_norm``. The client computes them before it applies ``part-scales``.
    accepts : bool or None
        Whether the client takes part in this round. A client reports this field only if the client itself
        decides whether it takes part.
    training_seconds : float or None
        How long the local training took, in seconds, in [0, 1e9].
    battery : float or None
        The charge of the device's battery, %, in [0, 100].
    properties : mapping of str to value or None
        What `Eligibility` may depend on: up to 32 properties by name, each of them True, False, a finite
        number, a text of up to 128 printable characters, or a list of up to 32 such texts, such as ``tags``;
        together up to 8,192 bytes as JSON.
    available : bool
        Whether the client can train now. It is False, for example, if the battery is low, the network is
        metered, or the device is busy.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )

    client_id: Annotated[_Name, AfterValidator(_ascii)] | None = None
    group: _Name | StrictInt | None = None
    cost: float | None = Field(default=None, ge=0, le=_MOST)
    energy: float | None = Field(default=None, ge=0, le=_MOST)
    num_examples: float | None = Field(default=None, gt=0, le=_MOST)
    num_steps: int | None = Field(default=None, ge=1, le=_MOST)
    learning_rate: float | None = Field(default=None, gt=0)
    train_loss: float | None = None
    loss: float | None = None
    gradient_variance: float | None = Field(default=None, ge=0)
    update_norm: float | None = Field(default=None, ge=0)
    num_parts: int | None = Field(default=None, ge=1, le=_MOST)
    model_norm: float | None = Field(default=None, ge=0)
    personal_norm: float | None = Field(default=None, ge=0)
    accepts: bool | None = None
    training_seconds: float | None = Field(default=None, ge=0, le=1e9)
    battery: float | None = Field(default=None, ge=0, le=100)
    properties: Annotated[dict[_Name, _Property], BeforeValidator(_few), AfterValidator(_short)] | None = None
    available: bool = True

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> "Report":
        """Return the report in a received record. Invalid fields are left out, except ``num-examples``.

        Raises a ValueError if ``num-examples`` is invalid. It cannot be left out, because the weights depend
        on it.
        """
        # Without this filter, pydantic would also accept a field by its Python name, such as client_id.
        aliases = [field.alias or name for name, field in cls.model_fields.items()]
        fields = {name: record[name] for name in aliases if name in record}
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            for details in error.errors():
                name = str(details["loc"][0])
                if name == "num-examples":
                    raise ValueError(printable(f"{name} = {fields[name]!r:.100}: {details['msg']}")) from None
                fields.pop(name, None)
            return cls.model_validate(fields)

    def metrics(self) -> dict[str, int | float]:
        """Return the fields that hold numbers and are not None, by name, for a MetricRecord."""
        numbers = self.model_dump(by_alias=True, exclude_none=True, exclude={*_NAMES, PROPERTIES})
        return {name: int(value) if isinstance(value, bool) else value for name, value in numbers.items()}

    def identity(self) -> dict[str, int | str]:
        """Return ``client-id`` and ``group`` if they are not None, for a ConfigRecord."""
        return self.model_dump(by_alias=True, exclude_none=True, include=_NAMES)
