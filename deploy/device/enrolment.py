"""Registers the key of an invited device with the server."""

import random
from collections.abc import Sequence
from pathlib import Path

import grpc

from deploy.fleet import wire
from deploy.flower.commands import INVITATION_HEADER
from deploy.tls.probe import unreachable

TIMEOUT = 60.0  # s for the server to answer


def enrol(servers: Sequence[str], authority: Path, token: str, public_key: str) -> None:
    """Ask a server to register a public key, in exchange for the token of an invitation.

    `servers`: the addresses of its front ends, which are asked in random order until one registers the key.
    Raises ValueError if none does, or if one knows the invitation and refuses it.
    """
    problems = []
    for server in random.sample(servers, len(servers)):
        problem = unreachable(server, authority)
        if problem is not None:
            problems.append(f"server = {server}: {problem}; the invitation has not been used")
        elif problem := _ask(server, authority, token, public_key):
            problems.append(f"invitation: {problem}")
        else:
            return
    raise ValueError("; ".join(dict.fromkeys(problems)))


def _ask(server: str, authority: Path, token: str, public_key: str) -> str:
    """Return why a server does not know an invitation now; "" if it has registered the key."""
    with grpc.secure_channel(server, grpc.ssl_channel_credentials(authority.read_bytes())) as channel:
        request = wire.METHODS["RegisterNode"].request(public_key=public_key.encode())
        try:
            wire.calls(channel)["RegisterNode"](
                request, metadata=((INVITATION_HEADER, token),), timeout=TIMEOUT
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise ValueError(f"invitation: {error.details()}") from None
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION):
                return (
                    "the server does not accept this invitation: it has expired, was withdrawn, "
                    "or is another server's"
                )
            return f"the server did not answer ({error.code().name}: {error.details()}); try again"
    return ""
