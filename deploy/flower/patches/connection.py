"""Lets a SuperNode connect over this project's gRPC connection instead of Flower's HTTP."""

from __future__ import annotations

import importlib

from deploy.fleet import connection
from deploy.flower.patches.shared import replace

_LOOP = "flwr.supernode.start_client_internal"
USED = (f"{_LOOP}:http_request_response", *connection.USED)


def patch() -> None:
    """Let a SuperNode connect with `deploy.fleet.connection`."""
    if not hasattr(importlib.import_module(_LOOP), "http_request_response"):
        raise SystemExit("flower-supernode does not start: this Flower connects SuperNodes in another way")
    replace(_LOOP, http_request_response=connection.grpc_request_response)
