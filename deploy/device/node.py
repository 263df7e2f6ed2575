"""The SuperNode of devices and containers: it ends when its connection or its supervisor ends.

`python -m deploy.device.node OPTIONS` runs `flower-supernode` with the patches of `deploy.flower.patches`. It
also differs from Flower's program in two points:

- It ends with its supervisor, even if that is killed; and when its connection ends with an error that Flower
  does not retry, such as a busy database of the SuperLink. Flower's main thread would then end while its HTTP
  server goes on: a process that does nothing.
- It takes 100 MB less. Its state is in memory, so Flower's database layer (SQLAlchemy, Alembic) is not
  imported; and its forked processes share their memory until they end.
"""

import atexit
import gc
import os
import sys

from deploy.processes.groups import LOST, end_with_parent
from deploy.processes.ports import LOOPBACK, free_ports


def main() -> None:
    """Run Flower's command on a free port, then end at once whatever its threads do."""
    end_with_parent()
    # A garbage collector writes to the objects that it inspects, and so copies the memory that forked
    # processes share. So does the clean-up at the end: forked processes end without it.
    os.register_at_fork(before=gc.freeze)
    os.register_at_fork(after_in_child=lambda: atexit.register(_leave, 0))

    # Late: these imports take a second, which must not delay the lines above.
    from deploy.flower import commands, launch
    from deploy.flower.patches.supernode import leave_out_the_database

    leave_out_the_database()
    (port,) = free_ports(1)  # for its ClientApps
    launch.main(commands.supernode(*sys.argv[1:], host=LOOPBACK, port=port))
    _leave(LOST)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
