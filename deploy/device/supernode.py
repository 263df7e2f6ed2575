"""The SuperNode of devices and containers, which ends with its supervisor and takes little memory.

`python -m deploy.device.supernode OPTIONS` runs `flower-supernode` with the patches of
`deploy.flower.patches`, and two more changes:

- It ends when its supervisor ends, even if the supervisor is killed.
- It takes 100 MB less memory. It keeps its state in memory, so it does not import Flower's database layer
  (SQLAlchemy, Alembic). Its forked processes share memory with it until they end.
"""

import atexit
import gc
import os
import sys

from deploy.processes.groups import LOST, end_with_parent
from deploy.processes.ports import LOOPBACK, free_ports


def main() -> None:
    """Run `flower-supernode` on a free port. Then end this process, even if threads still run."""
    end_with_parent()
    # Forked processes share memory until one of them writes to it. The garbage collector and the
    # interpreter's clean-up at exit write to objects, so objects are frozen before a fork, and forked
    # processes end without a clean-up.
    os.register_at_fork(before=gc.freeze)
    os.register_at_fork(after_in_child=lambda: atexit.register(_leave, 0))

    # Imported here, because these imports take a second, which must not delay the lines above.
    from deploy.flower import commands, launch
    from deploy.flower.patches.supernode import leave_out_the_database

    leave_out_the_database()
    (port,) = free_ports(1)  # at which ClientApps reach the SuperNode
    launch.main(commands.supernode(*sys.argv[1:], host=LOOPBACK, port=port))
    _leave(LOST)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
