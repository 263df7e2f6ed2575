"""What a client may say of itself: one schema, written by the client and checked by the server.

Everything is optional, so that a foreign client that returns only ``num-examples`` is served too. What the
server can compute itself is not asked: the norm of an update only where the update is hidden from the server.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

METRICS = "metrics"
"""Key of the MetricRecord with the numbers, as in Flower's own examples."""
IDENTITY = "identity"
"""Key of the ConfigRecord with ``client-id`` and ``group``: a MetricRecord holds numbers only."""

STATUS = "query.status"
"""Message type that asks a client who it is, how much data it has and whether it is available."""
LOSS = "query.loss"
"""Message type that asks for the loss of the model sent along, on all samples or ``batch-size`` of them."""
GROUP = "query.group"
"""Message type that asks, by randomised response, for a group that is the client's own affair."""
INVITATION = "query.invitation"
"""Message type that carries ``rates``, with which the clients of each group are to say yes."""

_NAMES = {"client_id", "group"}  # what is text, or may be


class Report(BaseModel):
    """A client's word.

    Attributes
    ----------
    client_id : str or None
        The durable identity that the client claims; one that the operator registered takes precedence.
    group : str, int or None
        The group it belongs to, for selectors with groups; 3 and "3" are the same.
    num_examples : float or None
        Training samples held, in (0, 1e12].
    num_steps : int or None
        Local steps taken, >= 1.
    learning_rate : float or None
        Of those steps, > 0.
    train_loss : float or None
        Mean local training loss; any finite number, since a likelihood's may be negative.
    loss : float or None
        Mean loss of the model that was sent, before training; finite.
    gradient_variance : float or None
        σ² >= 0: how far the gradient of a mini-batch is from their mean, squared, on average.
    update_norm : float or None
        ||w_m - w_t|| >= 0, L2, not divided by a learning rate. Believed only where the server is told that
        the updates themselves are masked.
    accepts : bool or None
        Whether it takes part in this round, where clients decide for themselves.
    available : bool
        False when the client does not want to train now (battery, metered network, busy).
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
        """Check what a client sent; a field that is wrong counts as not sent, but for ``num-examples``.

        Raises
        ------
        ValueError
            If ``num-examples`` is wrong, on which weights depend: its value and what is allowed.
        """
        said = dict(record)
        try:
            return cls.model_validate(said)
        except ValidationError as error:
            for details in error.errors():
                name = str(details["loc"][0])
                if name == "num-examples":
                    raise ValueError(f"{name} = {said[name]!r}: {details['msg']}") from None
                said.pop(name, None)
            return cls.model_validate(said)

    def metrics(self) -> dict[str, int | float]:
        """Return the numbers that were set, ready for a MetricRecord."""
        said = self.model_dump(by_alias=True, exclude_none=True, exclude=_NAMES)
        return {name: int(value) if isinstance(value, bool) else value for name, value in said.items()}

    def identity(self) -> dict[str, int | str]:
        """Return what may be text and was set, ready for a ConfigRecord."""
        return self.model_dump(by_alias=True, exclude_none=True, include=_NAMES)
