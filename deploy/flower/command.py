"""`flwr` commands that answer in JSON."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT = 60.0  # seconds
UNAVAILABLE = "is unavailable"  # in Flower's message when it does not reach the SuperLink


def flwr(*arguments: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a `flwr` command and return its answer.

    Returns
    -------
    dict[str, Any]
        What Flower answers. "success" is false if the command failed; "error-message" then says why, and
        contains `UNAVAILABLE` if the SuperLink did not answer.
    """
    try:
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            env=dict(environment),  # its PATH finds the program
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"success": False, "error-message": f"flwr {arguments[0]} {UNAVAILABLE}"}
    try:
        # `flwr supernode register` prints a sentence before the JSON.
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        message = (done.stderr or done.stdout).strip()
        return {"success": False, "error-message": f"flwr {arguments[0]}: {message}"}
    return answer
