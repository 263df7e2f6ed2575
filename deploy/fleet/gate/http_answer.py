"""Answers a peer that speaks HTTP/1.1 instead of gRPC, such as Flower's own SuperNode since 1.40.

Without an answer, such a peer says only that the connection was closed.
"""

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable

from deploy.fleet.gate.settings_check import NotAllowedError

REASON = (
    "This port speaks gRPC, not HTTP/1.1. A device joins with `cohort client join`, not with Flower's own "
    "flower-supernode (1.40 or newer)."
)
HTTP = "the peer speaks HTTP/1.1, as flower-supernode does since Flower 1.40: use `cohort client join`"
LEAVES = 1.0  # s in which the peer may read the answer and hang up
_REQUEST_LINE = re.compile(rb"[A-Z]{3,10} [^\r\n]{1,8000} HTTP/1\.[01]\r?\n")


async def refuse(received: bytes, send: Callable[[bytes], Awaitable[None]], raw: socket.socket) -> None:
    """Answer a request of HTTP/1.1 with status 400 and the reason. Any other bytes get no answer.

    Raises NotAllowedError after the answer: the peer speaks HTTP/1.1. Raises OSError if the connection
    breaks.
    """
    if not _REQUEST_LINE.match(received):
        return
    # Flower's SuperNode prints the message of an error in this form.
    body = json.dumps({"code": 400, "public_message": REASON}).encode() + b"\n"
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    await send(head.encode() + b"Connection: close\r\n\r\n" + body)
    # If data of the peer were left unread, the system would end the connection before the peer reads this.
    raw.shutdown(socket.SHUT_WR)
    loop, left = asyncio.get_running_loop(), 16
    try:
        async with asyncio.timeout(LEAVES):
            while left and await loop.sock_recv(raw, 16_384):
                left -= 1
    except TimeoutError:
        pass
    raise NotAllowedError(HTTP)
