"""Parses the lines of a history, and refuses a history of another version."""

from pathlib import Path
from typing import Any

from strategies.json_text import parse_json

from .field_checks import checked

FILE_NAME = "history.jsonl"
TOLD_TO_END = "told to end"  # `reason` in the last line of a run that somebody stopped
VERSION = 2
"""The version of the file's format. A history of another version is refused."""
Line = dict[str, Any]


class VersionError(ValueError):
    """A history has the format of another version of Cohort."""


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a history, without damaged ones and without an incomplete last one.

    If there is no file, the list is empty.

    Raises
    ------
    ValueError
        If the file is a history of another version.
    """
    return undamaged(path, path.read_bytes()) if path.exists() else []


def undamaged(path: Path, content: bytes) -> list[Line]:
    """Return the complete lines in a part of a history, without damaged ones."""
    lines = []
    for text in content.split(b"\n")[:-1]:
        try:
            lines.append(parsed(path, text))
        except VersionError:
            raise
        except ValueError:
            continue
    return lines


def parsed(path: Path, text: bytes) -> Line:
    """Parse a text as one line of a history; raise a ValueError if the line is damaged.

    Raises
    ------
    VersionError
        If the line says that the history is of another version.
    """
    try:
        line = parse_json(text)
    except ValueError:
        raise ValueError("must be JSON") from None
    if isinstance(line, dict) and line.get("type") == "run" and line.get("version") != VERSION:
        raise VersionError(
            f"{path}: written by another version of Cohort (format {line.get('version', 1)}, this one reads "
            f"{VERSION}); start a new run"
        )
    return checked(line)
