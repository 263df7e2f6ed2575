"""The page's address, which holds a secret."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from deploy.processes.ports import LOOPBACK
from deploy.tls.certificates import write_private

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "COHORT_PAGE_TOKEN"  # the environment variable with the secret of the page's address


def new_token() -> str:
    """Return a new secret for the page's address."""
    return secrets.token_urlsafe(24)


def kept_token(file: Path) -> str:
    """Return the secret that the file holds, so that the page keeps its address when it is started again.

    The file is made if it is missing or empty.
    """
    if not file.exists() or not file.stat().st_size:  # empty: the power failed while the file was written
        file.unlink(missing_ok=True)
        write_private(file, new_token().encode())
    return file.read_text()


def address(port: int, token: str) -> str:
    """Return the page's address on this machine."""
    return f"http://{LOOPBACK}:{port}/{token}/"
