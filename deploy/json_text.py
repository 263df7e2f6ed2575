"""Parses JSON that a person or a stranger may have damaged. Uses the standard library only."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    `strategies.json_text` has the same function. It is not used here, because programs on a device must not
    import `strategies`, which takes much memory.

    Raises ValueError if the text is not JSON, or has so many levels of brackets that Python cannot parse it.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it has too many levels of brackets") from None
