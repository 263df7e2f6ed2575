"""The SuperNode of devices and containers, which ends when its connection or its supervisor ends.

`python -m deploy.device.supernode OPTIONS` runs `flower-supernode` with the patches of
`deploy.flower.patches`. It has two more differences from Flower's program:

- It ends when its supervisor ends, even if the supervisor is killed. It also ends when its connection
  fails with an error that is not retried (`deploy.flower.patches.supernode`), such as the refusal of a
  revoked key. In Flower's program, only the main thread would end. The HTTP server would go on, so a useless
  process would remain.
- It takes 100 MB less memory. Its state is in memory, so it does not import Flower's database layer
  (SQLAlchemy, Alembic). Its forked processes share memory with it until they end.
"""

import atexit
import gc
import os
import sys

from deploy.processes.groups import LOST, end_with_parent
from deploy.processes.ports import LOOPBACK, free_ports


def main() -> None:
    """Run `flower-supernode` on a free port. At its end, end this process, even if threads still run."""
    end_with_parent()
    # Forked processes share memory until one of them writes to it. The garbage collector writes to the
    # objects that it inspects, so objects are frozen before a fork. The interpreter's clean-up at exit writes
    # too, so forked processes end without a clean-up.
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
