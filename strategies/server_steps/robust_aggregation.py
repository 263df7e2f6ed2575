"""The server step of strategies that see single replies: median, trimmed mean, Krum, Bulyan and q-FedAvg."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from flwr.app import Message
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from .replies import Asked, Contribution


def least_replies(server_strategy: Strategy) -> int:
    """Return the least number of replies for which the guarantee of a strategy holds."""
    if isinstance(server_strategy, flower.Krum | flower.MultiKrum):
        return 2 * server_strategy.num_malicious_nodes + 3
    if isinstance(server_strategy, flower.Bulyan):
        return 4 * server_strategy.num_malicious_nodes + 3
    return 1


def usable(server_strategy: Strategy, contributions: Sequence[Contribution]) -> list[Contribution]:
    """Return the contributions that a strategy can use. q-FedAvg needs finite losses >= 0."""
    if isinstance(server_strategy, flower.QFedAvg):
        return [each for each in contributions if isfinite(each.loss) and each.loss >= 0]
    return list(contributions)


def step(
    asked: Asked, round: int, shown: Sequence[Contribution], message: Message, *, copies: bool
) -> dict[str, NDArray[Any]] | None:
    """Return the new model (or None) from unscaled replies: one a draw if ``copies``, else one a client."""
    replies = [
        asked.reply(message, each.arrays, weight=1 if copies else each.count, loss=each.loss)
        for each in shown
        for _ in range(each.count if copies else 1)
    ]
    return asked.step(round, replies)
