"""The role `serverapp`: the executor, Flower's program that starts the ServerApps.

The executor (Flower's SuperExec) has a container of its own, so that runs survive a restart of the SuperLink.
"""

from deploy.container import AUTHORITY, CONTROL_HOST, CONTROL_PORT, EXECUTOR_SECRET
from deploy.container.supervisor import ContainerSupervisor
from deploy.flower import commands


def main() -> int:
    """Keep the executor running until the container is stopped."""
    return ContainerSupervisor(_command, ready_line="Starting Flower SuperExec").supervise()


def _command() -> list[str]:
    control = f"{CONTROL_HOST}:{CONTROL_PORT}"
    command = commands.superexec(control=control, authority=AUTHORITY, secret=EXECUTOR_SECRET)
    return commands.patched(command, installed=False)
