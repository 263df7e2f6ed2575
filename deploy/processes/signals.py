"""Lets signals end a block of code as cleanly as Ctrl-C does."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def raise_on_signals(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Raise an exception in the block when a signal asks this process to end.

    SIGTERM, and SIGHUP from a closed terminal, raise ``error(number)`` with the signal's number. SIGINT
    (Ctrl-C) raises KeyboardInterrupt. After the block, the earlier signal handlers are restored.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise error(number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    # If a script has started this program in the background, SIGINT is ignored until this line.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
