"""A SuperNode for devices and containers, that ends when its work or its supervisor does.

`python -m deploy.device.node OPTIONS` runs `flower-supernode` as `deploy.flower.launch` does, and besides:

- It ends with its supervisor, even if that is killed; and where its connection ends with an error that Flower
  does not retry (the SuperLink's database was busy, say). Flower's main thread then ends while that of its
  HTTP server goes on: a process that is there and does nothing.
- It holds 100 MB less. Its state is in memory, so Flower's database layer (SQLAlchemy, Alembic) is left out;
  and what its processes have in common stays in common until the end.
"""

import atexit
import gc
import os
import sys

from deploy.processes.groups import LOST, end_with_parent
from deploy.processes.ports import LOOPBACK, free_ports


def main() -> None:
    """Run Flower's command on a free port, then leave at once whatever its threads do."""
    end_with_parent()
    # A collector that looks at objects writes to them, and so copies the memory that forked processes share.
    # So does tidying up at the end: what was forked leaves without.
    os.register_at_fork(before=gc.freeze)
    os.register_at_fork(after_in_child=lambda: atexit.register(_leave, 0))

    # Late: these imports take a second, which must not delay the lines above.
    from deploy.flower import commands, launch
    from deploy.flower.patches.supernode import leave_out_the_database

    leave_out_the_database()
    (port,) = free_ports(1)  # where its ClientApps reach it
    launch.main(commands.supernode(*sys.argv[1:], host=LOOPBACK, port=port))
    _leave(LOST)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
