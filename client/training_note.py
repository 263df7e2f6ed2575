"""Notes in a file of a device how often the device has trained, and why it last failed.

`cohort client status` shows this to the device's owner.
"""

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from flwr.app import Context, Message, MessageType

TRAINING_FILE = "training-file"
"""Key of the file's path in the node's config. A client without it, such as a simulated one, has no note."""
LONGEST_PROBLEM = 500  # characters


class Note(NamedTuple):
    """What a device has noted."""

    trained: int = 0
    """How many trainings have ended with a model, in all runs."""
    last: str = ""
    """When the last of them ended, in ISO format; "" for never."""
    problem: str = ""
    """The error of the newest message, and when; "" if it was answered without one."""


def read_note(path: Path) -> Note:
    """Return what the file says; an empty note if there is no file, or if it cannot be read."""
    try:
        noted = json.loads(path.read_text())
        return Note(int(noted["trained"]), str(noted["last"]), str(noted["problem"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Note()


def training_note_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answer a message, and note a training that ended, or an error. A mod of the ClientApp."""
    file = context.node_config.get(TRAINING_FILE)
    if file is None:
        return call_next(message, context)
    path, now = Path(str(file)), datetime.now(UTC).isoformat(timespec="seconds")
    before = read_note(path)
    try:
        reply = call_next(message, context)
    except Exception as error:
        _write(path, before._replace(problem=f"{error} ({now})"[-LONGEST_PROBLEM:]))
        raise
    if message.metadata.message_type == MessageType.TRAIN and reply.content.array_records:
        _write(path, Note(before.trained + 1, datetime.now(UTC).isoformat(timespec="seconds")))
    elif before.problem:
        _write(path, before._replace(problem=""))
    return reply


def _write(path: Path, note: Note) -> None:
    """Replace the file. If the disk is full, for example, the device goes on without the note."""
    new = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        new.write_text(json.dumps(note._asdict()))
        new.replace(path)
