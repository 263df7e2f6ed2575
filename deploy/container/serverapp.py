"""The executor of ServerApps, apart from the SuperLink so that runs survive the SuperLink's restart."""

from __future__ import annotations

from deploy.container import AUTHORITY, CONTROL_HOST, CONTROL_PORT, EXECUTOR_SECRET
from deploy.container.supervisor import ContainerSupervisor
from deploy.flower import commands


def main() -> int:
    """Keep it running."""
    return ContainerSupervisor(_command, ready_line="Starting Flower SuperExec").supervise()


def _command() -> list[str]:
    control = f"{CONTROL_HOST}:{CONTROL_PORT}"
    command = commands.superexec(control=control, authority=AUTHORITY, secret=EXECUTOR_SECRET)
    return commands.patched(command, installed=False)
