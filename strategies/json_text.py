"""Parses JSON that a person or a client may have damaged."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises a ValueError if the text is not JSON, or has so many levels of brackets that Python cannot parse
    it.

    Examples
    --------
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it has too many levels of brackets
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it has too many levels of brackets") from None
