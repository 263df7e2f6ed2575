"""The page's address, which holds a secret."""

from __future__ import annotations

import secrets

from deploy.processes.ports import LOOPBACK

TOKEN = "COHORT_PAGE_TOKEN"  # the environment variable with the secret of the page's address


def new_token() -> str:
    """Return a new secret for the page's address."""
    return secrets.token_urlsafe(24)


def address(port: int, token: str) -> str:
    """Return the page's address on this machine."""
    return f"http://{LOOPBACK}:{port}/{token}/"
