"""The command `cohort`. Ctrl-C ends it without a traceback, also while its modules are imported."""

import sys


def main() -> None:
    """Run `cohort` with the arguments of this process."""
    try:
        from deploy.cli import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli()
