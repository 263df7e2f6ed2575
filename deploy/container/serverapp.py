"""The executor of ServerApps, outside of the SuperLink, so that a run survives the SuperLink's restart."""

from __future__ import annotations

import sys

from deploy.container import AUTHORITY, CONTROL_HOST, CONTROL_PORT, EXECUTOR_SECRET
from deploy.container.supervisor import Supervisor


def main() -> int:
    """Keep it running."""
    return Supervisor(_command, ready_line="Starting Flower SuperExec").run()


def _command() -> list[str]:
    return [
        *(sys.executable, "-m", "deploy.flower.launch", "flower-superexec"),
        *("--runtime-api-address", f"{CONTROL_HOST}:{CONTROL_PORT}"),
        *("--root-certificates", str(AUTHORITY)),
        *("--superexec-auth-secret-file", str(EXECUTOR_SECRET)),
    ]
