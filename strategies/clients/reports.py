"""What a client reports about itself: one schema, written by the client and checked by the server.

Every field is optional, so that a foreign client that returns only ``num-examples`` is served too. The server
asks for nothing that it can compute: for the norm of an update only if the update is hidden from it.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

METRICS = "metrics"
"""Key of the MetricRecord with the numbers, as in Flower's own examples."""
IDENTITY = "identity"
"""Key of the ConfigRecord with ``client-id`` and ``group``: a MetricRecord holds numbers only."""

STATUS = "query.status"
"""Message type that asks a client for its identity, data size and availability."""
LOSS = "query.loss"
"""Message type that asks for the loss of the model in it, on all samples or on ``batch-size`` of them."""
GROUP = "query.group"
"""Message type that asks, by randomised response, for the client's private group."""
INVITATION = "query.invitation"
"""Message type that carries ``rates``: the probability with which the clients of each group accept."""

REPORT_VARIANCE = "report-gradient-variance"
"""TRAIN config: the client shall report ``gradient-variance``."""
REPORT_NORM = "report-update-norm"
"""TRAIN config: the client shall report ``update-norm``, since the server does not see its update."""
UPDATE_WEIGHT = "update-weight"
"""TRAIN config: the client multiplies its update by this number before it masks it."""
UPDATE_SCALES = "update-scales"
"""TRAIN config: the client multiplies its update by the number of its private group."""

_NAMES = {"client_id", "group"}  # fields that may be text


class Report(BaseModel):
    """The report of a client.

    Attributes
    ----------
    client_id : str or None
        The durable identity that the client claims; a registered name takes precedence.
    group : str, int or None
        Its group, for selectors with groups; 3 and "3" are the same.
    num_examples : float or None
        Training samples held, in (0, 1e12].
    num_steps : int or None
        Local steps taken, >= 1.
    learning_rate : float or None
        Of those steps, > 0.
    train_loss : float or None
        Mean local training loss; finite, may be negative (log-likelihood).
    loss : float or None
        Mean loss of the received model, before training; finite.
    gradient_variance : float or None
        σ² >= 0: the mean squared distance of mini-batch gradients from their mean.
    update_norm : float or None
        ||w_m - w_t|| >= 0, L2, not divided by a learning rate. Used only with ``masked_updates``.
    accepts : bool or None
        Whether it takes part in this round, where clients decide.
    available : bool
        False if the client cannot train now (battery, metered network, busy).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )

    client_id: str | None = Field(default=None, min_length=1, max_length=128)
    group: Annotated[StrictStr, Field(min_length=1, max_length=128)] | StrictInt | None = None
    num_examples: float | None = Field(default=None, gt=0, le=1e12)
    num_steps: int | None = Field(default=None, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    train_loss: float | None = None
    loss: float | None = None
    gradient_variance: float | None = Field(default=None, ge=0)
    update_norm: float | None = Field(default=None, ge=0)
    accepts: bool | None = None
    available: bool = True

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> "Report":
        """Check a received report; an invalid field is dropped, except ``num-examples``.

        Raises
        ------
        ValueError
            If ``num-examples`` is invalid: weights depend on it.
        """
        fields = dict(record)
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            for details in error.errors():
                name = str(details["loc"][0])
                if name == "num-examples":
                    raise ValueError(f"{name} = {fields[name]!r}: {details['msg']}") from None
                fields.pop(name, None)
            return cls.model_validate(fields)

    def metrics(self) -> dict[str, int | float]:
        """Return the numbers that are set, for a MetricRecord."""
        numbers = self.model_dump(by_alias=True, exclude_none=True, exclude=_NAMES)
        return {name: int(value) if isinstance(value, bool) else value for name, value in numbers.items()}

    def identity(self) -> dict[str, int | str]:
        """Return the fields that are set and may be text, for a ConfigRecord."""
        return self.model_dump(by_alias=True, exclude_none=True, include=_NAMES)
