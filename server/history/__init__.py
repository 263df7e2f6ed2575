"""The history of a run: a JSONL file with everything that is needed to plot the run (docs/history.md).

No module outside this folder writes or reads the file. Readers ignore unknown types and keys. NaN and
infinite numbers are written as null. Texts may come from clients: `RunHistory.read` replaces control
characters in all texts by escapes; `Tail` and `read_lines` do not.
"""

from .parsing import FILE_NAME, TOLD_TO_END, VERSION, Line, VersionError, read_lines
from .reader import RunHistory, no_history, read_run
from .tail import Tail
from .writer import HistoryWriter

__all__ = [
    "FILE_NAME",
    "TOLD_TO_END",
    "VERSION",
    "HistoryWriter",
    "Line",
    "RunHistory",
    "Tail",
    "VersionError",
    "no_history",
    "read_lines",
    "read_run",
]
