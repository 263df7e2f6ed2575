"""Raises the limit of open files of this process. Every connection is an open file."""

import contextlib
import sys

OPEN_FILES = 65_536  # the wanted limit of open files


def raise_file_limit() -> None:
    """Raise the limit of open files to `OPEN_FILES`, or as far as the system allows."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
