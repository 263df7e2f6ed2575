"""A disk on which nothing more can be written."""

import contextlib
import resource


@contextlib.contextmanager
def full():
    """Let every write to a file fail inside the block: the largest file of this process has no byte.

    As on a full disk, empty files can be made.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
