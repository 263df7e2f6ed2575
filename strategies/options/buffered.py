"""Buffered: the settings of buffered (asynchronous) rounds, which do not wait for slow clients."""

from dataclasses import KW_ONLY, dataclass

from ..selectors import checks

MOST_CLIENTS = 10**6
MOST_STEPS = 10**6


@dataclass(frozen=True)
class Buffered:
    """Rounds that do not wait for slow clients: the model moves after every K arrivals.

    The server keeps ``concurrency`` clients busy. An *arrival* is a usable update. Arrivals are gathered in a
    buffer. When the buffer holds ``size`` arrivals that count (see ``size``), the round ends: the server
    takes one step from all arrivals, and the places that became free are filled with clients that train from
    the new model. The other clients go on training from the model that they have. The *staleness* τ of an
    update is the number of rounds that ended while its client trained. The buffer is that of FedBuff (Nguyen
    et al. 2022, Federated Learning with Buffered Asynchronous Aggregation). The weights are different from
    FedBuff's: they keep the aggregate unbiased although clients differ in speed, see
    `strategies.rounds.buffered.buffer.Buffer`.

    Attributes
    ----------
    concurrency : int
        C, how many clients train at the same time, >= 1. If fewer clients are available, all of them train.
    size : int, optional
        K, the number of arrivals in a round, >= 1 (default: ``clients_per_round``). A round has fewer if no
        further client can be asked, and no client holds a place. It has more if some clients reply much
        faster than others: a client's arrivals count at most twice as often as those of the average client.
        With ``count_busy``, the first round of a run ends after C arrivals if C is more than K, so that the
        fastest clients are not most of the buffer before any norm or direction is known.
    max_staleness : int (default: 100)
        The largest staleness of an update that is used, >= 0. A staler update is rejected. The record of the
        round in which it arrives lists its client (``failures`` of `RoundRecord`) and counts it
        (``num_stale``). If clients are so slow that their updates are rejected, the aggregate is biased
        against them.
    staleness_power : float (default: 0)
        A power in [0, 10]: the weight of an update is multiplied by (1 + τ)^-staleness_power. FedBuff's
        power is 0.5. Stale updates are mostly those of slow clients, so a power above 0 biases the aggregate
        against these clients. `strategies.rounds.buffered.buffer.Buffer` explains why this bias is not
        corrected. With 0, one update of a client that was busy for long has a large weight: if dishonest
        clients may hold updates back, or the learning rate is nearly too large, set 0.5 (docs/security.md).
    count_busy : bool (default: True)
        Whether each draw of an idle client also adds to the weights of the updates that busy clients are
        working on. This keeps the aggregate unbiased although only idle clients can be drawn. With False, as
        in FedBuff, the aggregate is biased towards fast clients, which are idle more often. Any K arrivals
        then end a round, no matter which clients send them. With selectors that are biased on purpose, draws
        never add to the weights of busy clients.
    """

    concurrency: int
    _: KW_ONLY
    size: int | None = None
    max_staleness: int = 100
    staleness_power: float = 0.0
    count_busy: bool = True

    def __post_init__(self) -> None:
        checks.integer("mode.concurrency", self.concurrency, low=1, high=MOST_CLIENTS)
        if self.size is not None:
            checks.integer("mode.size", self.size, low=1, high=MOST_CLIENTS)
        checks.integer("mode.max_staleness", self.max_staleness, low=0, high=MOST_STEPS)
        checks.real("mode.staleness_power", self.staleness_power, low=0, high=10)
        checks.boolean("mode.count_busy", self.count_busy)
