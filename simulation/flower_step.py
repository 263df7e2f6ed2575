"""The server step of a simulated round by a Flower strategy."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ConfigRecord

from strategies.flower.arrays import to_record
from strategies.rounds.stages import Outcome
from strategies.server_steps.replies import contributions_of
from strategies.server_steps.step import ServerStep, Step
from tasks.base import Arrays

from .grid import InProcessGrid


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the lines that Flower's strategies log in each round: a simulation has thousands of rounds."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


def take_step(server: ServerStep, arrays: Arrays, outcome: Outcome) -> Step:
    """Let the strategy step from the model ``arrays``, given the outcome of a round that is not skipped."""
    assert outcome.arrays is not None
    grid, number = InProcessGrid(lambda message, _: message, [{}]), outcome.record.round
    with _quiet():
        messages = server.configure(number, to_record(dict(arrays)), ConfigRecord(), grid)
        return server.step(number, arrays, outcome.arrays, contributions_of(outcome), messages)
