"""The page's address, which holds a secret."""

import contextlib
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deploy.processes.ports import LOOPBACK
from deploy.tls.certificates import keep_private

TOKEN = "COHORT_PAGE_TOKEN"  # the environment variable with the secret of the page's address


def new_token() -> str:
    """Return a new secret for the page's address."""
    return secrets.token_urlsafe(24)


def kept_token(file: Path) -> str:
    """Return the secret that the file holds, so that the page keeps its address when it is started again."""
    keep_private(file, new_token().encode())
    return file.read_text()


@contextlib.contextmanager
def shown_address(port: int, token: str, kept: Path | None = None) -> Iterator[str]:
    """Inside a `with` block, yield the page's address in a form that may be printed.

    A terminal shows the secret. Other output may end in a log that others can read, so it gets the name of a
    file with the secret instead, which only this user can read.
    """
    if sys.stdout.isatty():
        yield address(port, token)
        return
    with contextlib.ExitStack() as stack:
        if kept is None:
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", prefix="cohort-page-"))  # mode 0600
            file.write(token)
            file.flush()
            kept = Path(file.name)
        yield f"{address(port, 'SECRET')} with the SECRET in {kept}"


def address(port: int, token: str) -> str:
    """Return the page's address on this machine."""
    return f"http://{LOOPBACK}:{port}/{token}/"
