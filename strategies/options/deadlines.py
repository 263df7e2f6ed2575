"""How long a run waits for clients and for their answers."""

from dataclasses import dataclass, fields

from ..selectors import checks


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """How long a run waits. Each value is in seconds, > 0; infinity is allowed.

    ``round``, ``status`` and ``poll`` are upper limits. The server measures how long clients take to answer.
    It waits for an answer until the first of these times, and never less than ``shortest`` seconds:

    ========================================  ================================================================
    awaited                                   until
    ========================================  ================================================================
    any answer, poll or trained model         the limit: ``status``, ``poll`` or ``round``
    a client with known times                 three times its slowest recent time; twice, if it was silent
                                              lately
    a client that has never answered, of M    the longer of three times the usual time, and the shorter of
                                              2000/M² times the usual time and a fifth of the limit; twice the
                                              usual time, if it was silent lately
    such a client, while the server knows     the limit
    too few times
    a model of which more has arrived since   the same wait again, from then on
    the last look
    a quorum that can still be reached        the limit
    the status of all nodes, in rounds        10 s plus 5 % of the time of the run, for all nodes together
    a node that has gone offline              it is known to be offline
    a late reply, while later rounds run      300 s after the limit: it is not used (in buffered rounds it is,
                                              until the limit), but the client is no longer silent, and the
                                              server knows its time
    ========================================  ================================================================

    The usual time is the time within which four in five recent answers came. Waits are twice as long while
    most clients have not answered. A failure says which wait has ended. See
    `strategies.rounds.waiting.wait_time.Wait`.

    Attributes
    ----------
    join : float (default: 600)
        How long round 1 waits for ``min_available_clients`` clients. After this time, round 1 starts if at
        least ``clients_per_round`` clients are available, and otherwise the run ends.
    absence : float (default: 600)
        How long a round waits until ``quorum`` clients are available. After this time the run ends.
    round : float (default: 3600)
        The longest time for which a round waits for replies. After it, the round uses the replies that have
        arrived.
    status : float (default: 60)
        The longest time for which the server waits until a new client answers the first question. A client
        that does not answer is asked again at growing intervals.
    poll : float (default: 60)
        The longest time for which the server waits until the candidates answer a poll. If the candidates
        must train before they answer, ``round`` applies instead.
    shortest : float (default: 3)
        The server waits at least this long for an answer, unless the upper limit is lower. If this value is
        infinite, the server waits for a missing answer until the upper limit. It also does so for a client
        that has never answered a message of the same kind (status question, poll, training, ...), while it
        knows too few times of answers to such messages: fewer than 64, and fewer than half the number of
        clients that it asked.
    """

    join: float = 600.0
    absence: float = 600.0
    round: float = 3600.0
    status: float = 60.0
    poll: float = 60.0
    shortest: float = 3.0

    def __post_init__(self) -> None:
        for each in fields(self):
            checks.seconds(f"deadlines.{each.name}", getattr(self, each.name))
