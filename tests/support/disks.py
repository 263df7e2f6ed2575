"""Disks on which nothing more can be written."""

import contextlib
import resource
import subprocess

import pytest


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


@contextlib.contextmanager
def mounted(folder, size):
    """Mount a file system of this size ("1m") at the folder; where that is not allowed, skip the test."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(mount, check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
