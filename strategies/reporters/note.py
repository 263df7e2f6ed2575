"""A small JSON file from which a reporter knows, after a resume, which of its tracker's runs to continue."""

import json
from pathlib import Path
from typing import Any

from ..checkpoint import replacing
from ..json_text import parse_json


def read_note(path: Path) -> dict[str, Any]:
    """Return the content of a note; an empty dict if there is no note, or none that can be read."""
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(path: Path, **values: Any) -> None:
    """Write a note. A crash leaves the old note or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(json.dumps(values).encode())
