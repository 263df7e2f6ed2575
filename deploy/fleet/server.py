"""The gRPC server of the Fleet API, which a SuperLink starts beside its HTTP APIs.

Flower's SuperLink serves its control and runtime APIs over HTTP, in an app that `flwr.superlink.main` makes.
`guard` lets this app start the gRPC server with its state and its certificates, and stop it when it ends.
Flower's own Fleet API over HTTP would be a second door, without these guards: it is answered with 404.
"""

import errno
import importlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import wraps
from logging import getLogger
from typing import Any

import grpc

from deploy.fleet import factories, protocol
from deploy.fleet.admission.refusal_log import limit_lines, make_safe
from deploy.fleet.admission.reply_admission import ReplyAdmission
from deploy.fleet.duties import enrolment
from deploy.fleet.duties.duties import duties
from deploy.fleet.duties.presence import SERVER_OPTIONS
from deploy.fleet.front_door import BUSY, CALLS_PER_NODE, SMALL_BODY, SPARE, FrontDoor
from deploy.fleet.gate.connection_gate import Gate
from deploy.fleet.service import FleetService
from deploy.fleet.threads import Threads
from deploy.flower.commands import NO_START
from deploy.flower.patches.guards.reply_size import check_setting
from deploy.flower.patches.shared import replace
from deploy.processes.file_limit import raise_file_limit

ADDRESS = "--fleet-api-address"  # the option of the SuperLink whose value is HOST:PORT of the Fleet API
STOP = 1.0  # s in which requests under way may finish when the SuperLink ends

_APP = "flwr.superlink.main"  # imported by Flower inside a function, after the program's start


def guard() -> None:
    """Let the SuperLink serve the Fleet API over gRPC, and only behind the front door.

    Takes the option `ADDRESS` out of the program's arguments.
    """
    address = take_address(sys.argv)
    check_setting()
    make_safe(getLogger("flwr"))
    limit_lines(getLogger("flwr"))
    raise_file_limit()
    create = importlib.import_module(_APP).create_app

    @wraps(create)
    def create_with_fleet(config: Any, *arguments: Any, **settings: Any) -> Any:
        app = create(config, *arguments, **settings)
        lifespan, factory = app.router.lifespan_context, app.state.linkstate_factory

        @asynccontextmanager
        async def with_fleet(this: Any) -> AsyncIterator[Any]:
            server = start(address, factory, config)
            try:
                async with lifespan(this) as state:
                    yield state
            finally:
                duties.presence.end()
                if (front_end := factory.state().front_end) is not None:
                    front_end.stop()
                server.stop(grace=STOP)

        app.router.lifespan_context = with_fleet
        app.add_middleware(NoFleetOverHTTP)
        return app

    replace(_APP, create_app=create_with_fleet)


def take_address(arguments: list[str]) -> str:
    """Remove the option `ADDRESS` from a program's arguments, and return its value."""
    if ADDRESS not in arguments[:-1]:
        raise SystemExit(f"{NO_START} it needs {ADDRESS} HOST:PORT")
    place = arguments.index(ADDRESS)
    address = arguments[place + 1]
    del arguments[place : place + 2]
    return address


class NoFleetOverHTTP:
    """ASGI middleware that answers each request for Flower's Fleet API over HTTP with 404 and a reason."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer the request, or pass it on if it is for another API."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/fleet"):
            await self._app(scope, receive, send)
            return
        text = b"This server speaks gRPC with its devices: use `cohort client join`, not flower-supernode\n"
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": text})


def start(address: str, state_factory: Any, config: Any) -> Any:
    """Start the Fleet API behind the front door, and return its gRPC server."""
    if not config.enable_supernode_auth or config.certificates is None:
        raise SystemExit(f"{NO_START} it needs --enable-supernode-auth and TLS certificates")
    if not factories.is_handed_over(state_factory.state()):
        raise SystemExit(f"{NO_START} its state is not this project's")
    try:
        gate = Gate(address, *config.certificates[1:])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SystemExit(f"Port in server address {address} is already in use. ({error})") from error
        raise SystemExit(f"{NO_START} it cannot listen on {address} ({error})") from error
    duties.presence.begin(state := state_factory.state())
    if state.front_end is not None:
        state.front_end.start(state, duties)
    largest = protocol.CHUNK + SPARE
    threads = Threads(BUSY)
    replies = ReplyAdmission(state_factory, gate.arrived, duties.delivered)
    door = FrontDoor(state_factory, gate, largest, replies, threads)
    fleet = FleetService(state_factory, duties, replies, door, enrolment.begin(state_factory))
    server = grpc.server(threads, handlers=[fleet], options=_options(largest))
    try:
        server.add_insecure_port(gate.behind)  # without TLS, which the gate decrypts
    except RuntimeError as error:
        raise SystemExit(f"{NO_START} it cannot listen on {gate.behind} ({error})") from error
    server.start()
    door.start()
    gate.start()
    getLogger("flwr").info("Fleet API (gRPC) on %s:%d", address.rpartition(":")[0], gate.port)
    return server


def _options(largest: int) -> list[tuple[str, int]]:
    """Return the options of the gRPC server: limits that gRPC itself enforces.

    `largest` is the most bytes of a request that holds an object.
    """
    return [
        ("grpc.max_receive_message_length", largest + SMALL_BODY),
        ("grpc.max_send_message_length", -1),
        # The only allowed compression is "identity" (none), because gRPC decompresses a body before the front
        # door can refuse the request.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_concurrent_streams", 2 * CALLS_PER_NODE),  # requests under way on one connection
        # The most bytes of a request's headers. gRPC adds 32 to the bytes of each header. A SuperNode's
        # requests have 1 kB.
        ("grpc.max_metadata_size", 4096),
        ("grpc.absolute_max_metadata_size", 4096),
        ("grpc.max_connection_idle_ms", 120_000),  # a node always has a request under way
        # Otherwise gRPC keeps the headers of a refused request for up to a second.
        ("grpc.http.tarpit", 0),
        *SERVER_OPTIONS.items(),
    ]
