"""The state of a run, from the last line of its history and the lock on its checkpoints."""

from pathlib import Path

from server.history import TOLD_TO_END, Line
from server.settings import CHECKPOINTS
from strategies.checkpoint import CheckpointFolder

STATES = ("running", "interrupted", "finished", "stopped", "failed")


def state_of(end: Line | None, folder: Path) -> str:
    """Return the state (`STATES`) of a run. `end` is the last line of its history if it has ended."""
    if end is not None:
        stopped = end.get("reason") == TOLD_TO_END
        return "finished" if end["type"] == "end" else "stopped" if stopped else "failed"
    try:
        claimed = CheckpointFolder(folder / CHECKPOINTS, report=lambda line: None).is_claimed()
    except OSError:  # this process may not open the lock: it cannot tell whether the run still goes on
        claimed = True
    return "running" if claimed else "interrupted"
