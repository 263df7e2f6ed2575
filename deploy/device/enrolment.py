"""Registers the key of an invited device with the server."""

from pathlib import Path

import grpc

from deploy.fleet import wire
from deploy.flower.commands import INVITATION_HEADER
from deploy.tls.probe import unreachable

TIMEOUT = 60.0  # s for the server to answer


def enrol(server: str, authority: Path, token: str, public_key: str) -> None:
    """Ask the server to register a public key, in exchange for the token of an invitation."""
    if problem := unreachable(server, authority):
        raise ValueError(f"server = {server}: {problem}; the invitation has not been used")
    with grpc.secure_channel(server, grpc.ssl_channel_credentials(authority.read_bytes())) as channel:
        request = wire.METHODS["RegisterNode"].request(public_key=public_key.encode())
        try:
            wire.calls(channel)["RegisterNode"](
                request, metadata=((INVITATION_HEADER, token),), timeout=TIMEOUT
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                reason = error.details()
            elif error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION):
                reason = (
                    "the server does not accept this invitation: it has expired, was withdrawn, "
                    "or is another server's"
                )
            else:
                reason = f"the server did not answer ({error.code().name}: {error.details()}); try again"
            raise ValueError(f"invitation: {reason}") from None
