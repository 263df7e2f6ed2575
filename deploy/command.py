"""The entry point of the program `cohort`: Ctrl-C ends it without a traceback, even while modules load."""

import sys


def main() -> None:
    """Run `cohort` with the arguments of this process."""
    try:
        from deploy.cli import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli()
