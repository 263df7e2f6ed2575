"""What a client may say of itself: one schema, written by the client and checked by the server.

It travels as one MetricRecord. Everything is optional, so that a foreign client that returns only
``num-examples`` is served too. What the server can compute itself (the norm of an update) is not asked.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

METRICS = "metrics"
"""Key of the MetricRecord with the numbers, as in Flower's own examples."""
IDENTITY = "identity"
"""Key of the ConfigRecord with ``client-id``: a MetricRecord holds numbers only."""

STATUS = "query.status"
"""Message type that asks a client who it is, how much data it has and whether it is available."""


class Report(BaseModel):
    """A client's word.

    Attributes
    ----------
    client_id : str or None
        The durable identity that the client claims; one that the operator registered takes precedence.
    num_examples : float or None
        Training samples held, in (0, 1e12].
    num_steps : int or None
        Local steps taken, >= 1.
    train_loss : float or None
        Mean local training loss; any finite number, since a likelihood's may be negative.
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
    num_examples: float | None = Field(default=None, gt=0, le=1e12)
    num_steps: int | None = Field(default=None, ge=1)
    train_loss: float | None = None
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
        said = self.model_dump(by_alias=True, exclude_none=True, exclude={"client_id"})
        return {name: int(value) if isinstance(value, bool) else value for name, value in said.items()}
