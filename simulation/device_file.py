"""Reads JSON files that describe devices, in the form that FedScale publishes (Lai et al. 2022).

FedScale's own files are pickles. Reading a pickle can run any code, so Cohort does not read them.
docs/simulation.md has the command that converts a pickle, on a machine where you trust the file.
"""

from pathlib import Path
from typing import Any

from strategies.json_text import parse_json


def read_devices(path: str | Path) -> dict[str, Any]:
    """Return each device's entry, by name, in numerical order if all are numbers; ValueError, OSError."""
    try:
        content = parse_json(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: must be a JSON file: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: must be an object with an entry for each device, at least one")
    whole = all(name.isdecimal() for name in content)
    return {name: content[name] for name in sorted(content, key=int if whole else None)}
