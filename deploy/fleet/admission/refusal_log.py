"""Makes logs safe although strangers can write into them: no control characters, no long texts, few lines."""

import importlib
import logging
import threading
import time
from collections import OrderedDict

LONGEST = 2000  # the most characters of a log message
LONGEST_REASON = 200  # the most characters of a refusal's reason, which may quote the sender
INTERVAL = 60.0  # s in which the same reason is logged only once for an address and a method
# The most reasons that are logged in an interval for an address and a method. Reasons may quote the sender,
# who can therefore cause any number of reasons.
REASONS = 8
PLACES = 1024  # the most pairs of address and method that are remembered
# The most refusals that are logged in an interval in all, because an attacker may have any number of
# addresses. Also the most lines of one logging statement in an interval (`_Few`).
LINES = 600


class _Safe(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception as error:  # the message and its arguments do not fit
            text = f"{record.msg!r} ({error})"
        record.msg, record.args = printable(text), ()
        return True


def make_safe(logger: logging.Logger) -> None:
    """Let a logger escape control characters, which could command the operator's terminal."""
    if not any(isinstance(each, _Safe) for each in logger.filters):
        logger.addFilter(_Safe())


def printable(text: str) -> str:
    """Return a text with its control characters escaped, except line breaks and tabs.

    If the text is longer than `LONGEST` characters, only its beginning is returned, followed by the length of
    the whole text.

    `strategies.clients.printable` has the same rule. It cannot be imported here, because the ServerApp must
    import `strategies` from the app that it runs.
    """
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


class _SafeArguments(logging.Filter):
    """Does what `_Safe` does, for a logger whose formatter needs the arguments of each message."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(printable(each) if isinstance(each, str) else each for each in record.args)
        return True


class _Few(logging.Filter):
    """Limits how often each logging statement of a package logs: `LINES` lines in `INTERVAL` seconds.

    A statement's first line after the interval says how many of its lines were not logged.
    """

    def __init__(self, package: str) -> None:
        super().__init__()
        self._folder = str(importlib.import_module(package).__path__[0])
        self._lock = threading.Lock()
        # By statement (file and line): when its interval began, and the number of lines since then.
        self._lines: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.pathname.startswith(self._folder):
            return True
        now, place = time.monotonic(), (record.pathname, record.lineno)
        with self._lock:
            began, lines = self._lines.get(place, (now, 0))
            if now - began < INTERVAL:
                self._lines[place] = began, lines + 1
                return lines < LINES
            self._lines[place] = now, 1
        if lines > LINES:
            record.msg = f"{record.msg} ({lines - LINES} more were not logged)"
        return True


def limit_lines(logger: logging.Logger, package: str = "flwr") -> None:
    """Limit the lines that clients can cause in a logger of a package."""
    if not any(isinstance(each, _Few) for each in logger.filters):
        logger.addFilter(_Few(package))


def limit_uvicorn() -> None:
    """Escape control characters in the log of uvicorn, the HTTP server; shorten and limit its lines."""
    for name in ("uvicorn.access", "uvicorn.error"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _SafeArguments) for each in logger.filters):
            logger.addFilter(_SafeArguments())
        limit_lines(logger, "uvicorn")


class RefusalLog:
    """Logs refused requests, with limits.

    For an address and a method, a reason is logged once in `INTERVAL` seconds, and at most `REASONS` reasons
    are logged. The first line after this interval says how many refusals were therefore not logged. Refusals
    beyond `LINES` in an interval, of all addresses together, are neither logged nor counted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By method and address: when its interval began, the reasons that were logged in the interval, and
        # the number of refusals that were not logged.
        self._recent: OrderedDict[tuple[str, str], tuple[float, set[str], int]] = OrderedDict()
        self._interval, self._lines = -INTERVAL, 0

    def refused(self, method: str, reason: str, peer: str) -> None:
        """Log a refusal unless a limit is reached. `peer` is gRPC's name of the sender."""
        reason = reason[:LONGEST_REASON].replace("\n", "\\n")  # the sender cannot begin a new line
        now, which = time.monotonic(), (method, peer.rpartition(":")[0])
        with self._lock:
            began, reasons, more = self._recent.get(which, (-INTERVAL, set(), 0))
            if now - began >= INTERVAL:
                began, reasons, unlogged, more = now, set(), more, 0
            elif reason in reasons or len(reasons) == REASONS:
                self._recent[which] = began, reasons, more + 1
                return
            else:
                unlogged = 0
            if now - self._interval >= INTERVAL:
                self._interval, self._lines = now, 0
            self._lines += 1
            if self._lines > LINES:
                return
            reasons.add(reason)
            self._recent[which] = began, reasons, more
            self._recent.move_to_end(which)
            if len(self._recent) > PLACES:
                self._recent.popitem(last=False)
        since = f" ({unlogged} more were not logged)" if unlogged else ""
        logging.getLogger("flwr").warning("[%s] Refused: %s, from %s%s", method, reason, peer, since)
