"""An endless run of a Flower strategy that pauses until it is commanded to run more rounds."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from flwr.app import ArrayRecord

from . import Engine

ENDLESS = 1_000_000_000  # number of rounds of a run that ends only when it is closed


class _Closed(Exception):  # noqa: N818 (nothing is wrong)
    """Raised inside the strategy to end the run."""


class Gate(Engine):
    """An engine that runs a strategy in a thread, and pauses it between blocks of rounds.

    `serve` starts a strategy for `ENDLESS` rounds. Its argument is the strategy's ``evaluate_fn``, which
    Flower calls before round 1 and after each round, and which pauses. `arrays`: the global model at the last
    pause.
    """

    def __init__(self, serve: Callable[[Callable[[int, ArrayRecord], None]], None]) -> None:
        self.arrays: ArrayRecord
        self._rounds = 0
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, args=(serve,), daemon=True)
        self._thread.start()
        self._wait()

    def run(self, rounds: int) -> None:
        self._asked.put(rounds)
        self._wait()

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join()

    def _wait(self) -> None:
        error = self._done.get()
        if error is not None:
            first = error
            while first.__cause__ or first.__context__:
                first = first.__cause__ or first.__context__ or first
            raise RuntimeError(f"the run broke off: {first!r}") from error

    def _serve(self, serve: Callable[[Callable[[int, ArrayRecord], None]], None]) -> None:
        try:
            serve(self._pause)
        except BaseException as error:
            self._done.put(error)

    def _pause(self, round: int, arrays: ArrayRecord) -> None:
        self._rounds -= 1
        if self._rounds > 0:
            return
        self.arrays = arrays
        self._done.put(None)
        rounds = self._asked.get()
        if rounds is None:
            raise _Closed
        self._rounds = rounds
