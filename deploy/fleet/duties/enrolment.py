"""Lets the Fleet API register the key of a device that shows the token of a valid invitation.

If SuperNodes must authenticate, stock Flower refuses every request `RegisterNode`. Here, if the metadata of
such a request hold the token of an invitation, this module answers the request. All other requests go on to
the front door (`front_door`).

The server's folder has a file for each registered client. If the SuperLink's database lacks a client of these
files, for example because the database is new, this module registers the client before the Fleet API starts.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, NoReturn

import grpc
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from deploy.fleet import protocol
from deploy.fleet.admission.refusal_log import RefusalLog
from deploy.fleet.sockets import sender
from deploy.flower.commands import INVITATION_HEADER, REGISTRY
from deploy.flower.registered_clients import RegistrationRefused, Registry

METHOD = "/flwr.proto.Fleet/RegisterNode"
MAX_KEY = 1024  # the most bytes of a public key
MAX_REQUEST = 4096  # the most bytes of a request
# The most enrolments under way, each in a thread of the Fleet API. No two of them have the same token, so one
# token cannot keep other devices out.
AT_ONCE = 4
SECONDS = 10.0  # s after which an enrolment is cancelled

_SHARED = "deploy.fleet.storage.shared_registry"
_AUTH = "flwr.superlink.auth_plugin"
_HANDLERS = "flwr.superlink.servicer.control.control_handlers"
_CONTROL_MESSAGES = "flwr.proto.control_pb2"
_FLEET_MESSAGES = "flwr.proto.fleet_pb2"


def begin(state_factory: Any) -> Enrolment | None:
    """Return what accepts invitations, or None unless the environment names a server's folder (`REGISTRY`).

    This function also registers the folder's clients that the database lacks.
    """
    folder = os.environ.pop(REGISTRY, None)
    if not folder:
        return None
    state, registry = state_factory.state(), Registry(Path(folder))
    if state.front_end is not None:
        shared = importlib.import_module(_SHARED).SharedRegistry(Path(folder), state.rows, state.alone)
        registry = state.front_end.registry = shared
        shared.refresh()
    enrolment = Enrolment(registry, state_factory)
    enrolment.restore()
    return enrolment


class Enrolment(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers the requests of invited devices."""

    def __init__(self, registry: Registry, state_factory: Any) -> None:
        self._registry, self._state_factory = registry, state_factory
        self._fleet = importlib.import_module(_FLEET_MESSAGES)
        self._lock = threading.Lock()
        self._joining: set[str] = set()  # the tokens of the enrolments that are under way
        self._log = RefusalLog()

    def restore(self) -> None:
        """Register the registry's clients that the SuperLink's database lacks, and log failures."""
        for name, reason in self._registry.restore(self._register).items():
            getLogger("flwr").warning("%s could not be registered again: %r", name, reason)

    def service(self, call: Any) -> Any:
        """Return gRPC's handler of a request that shows a valid token, or None for all other requests."""
        token = dict(call.invocation_metadata).get(INVITATION_HEADER) if call.method == METHOD else None
        # The body of a stranger's request is not read. The handler gets the body as a stream, because a body
        # that never ends would occupy a thread of gRPC for ever.
        if not isinstance(token, str) or not self._registry.knows(token):
            return None
        return grpc.stream_unary_rpc_method_handler(partial(self._answer, token))

    def _answer(self, token: str, bodies: Iterator[bytes], context: Any) -> bytes:
        with self._lock:
            again, full = token in self._joining, len(self._joining) >= AT_ONCE
            if not (again or full):
                self._joining.add(token)
        if again or full:
            reason = "a device is joining with this invitation" if again else f"{AT_ONCE} devices are joining"
            self._refuse(context, "RESOURCE_EXHAUSTED", reason)
        try:
            late = threading.Timer(SECONDS, context.cancel)
            late.daemon = True
            late.start()
            try:
                return self._enrol(token, next(bodies, b""), context)
            finally:
                late.cancel()
        except RegistrationRefused as error:
            self._refuse(context, "PERMISSION_DENIED", str(error))
        except grpc.RpcError:  # the device has hung up
            raise
        except Exception as error:  # such as a full disk, a damaged file, or a database that is gone
            reason = f"{type(error).__name__}: {error}"
            self._refuse(context, "UNAVAILABLE", reason, "its log says why")
        finally:
            with self._lock:
                self._joining.remove(token)

    def _refuse(self, context: Any, status: str, reason: str, answer: str = "") -> NoReturn:
        self._log.refused(METHOD, reason, sender(context))
        context.abort(grpc.StatusCode[status], answer or reason)
        raise RegistrationRefused(reason)

    def _enrol(self, token: str, body: bytes, context: Any) -> bytes:
        if len(body) > MAX_REQUEST:
            raise RegistrationRefused(f"{len(body)} bytes, and at most {MAX_REQUEST} are allowed")
        try:
            request = self._fleet.RegisterNodeFleetRequest.FromString(body)
        except Exception as error:
            raise RegistrationRefused(f"no valid request: {error}") from error
        name = self._registry.accept(token, self._checked(request.public_key), self._register)
        getLogger("flwr").info("[%s] %s has joined by invitation, from %s", METHOD, name, sender(context))
        answer: bytes = self._fleet.RegisterNodeFleetResponse().SerializeToString()
        return answer

    def _checked(self, key: bytes) -> str:
        """Return a public key as one line.

        Raises RegistrationRefused if the control API would not accept the key.
        """
        if len(key) <= MAX_KEY:
            with contextlib.suppress(ValueError, UnsupportedAlgorithm):
                public = serialization.load_ssh_public_key(key)
                if isinstance(public, EllipticCurvePublicKey):
                    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
                    return public.public_bytes(*form).decode()
        raise RegistrationRefused("the public key must be an elliptic-curve key in OpenSSH format")

    def _register(self, name: str, key: str) -> str:
        """Register a key as Flower's control API does, unless the key is registered. Return the node id."""
        state = self._state_factory.state()
        encoded = protocol.key_bytes(serialization.load_ssh_public_key(key.encode()))
        if (node := state.node_of_key(encoded)) is not None:
            if state.name_of(node) != name:
                raise RegistrationRefused("the public key is another client's")
            return str(node)
        account = importlib.import_module(_AUTH).NoOpControlAuthnPlugin().validate_tokens_in_metadata([])[1]
        asked = importlib.import_module(_CONTROL_MESSAGES).RegisterNodeRequest(public_key=encoded, name=name)
        try:
            return str(importlib.import_module(_HANDLERS).register_node(asked, account, state).node_id)
        except Exception as error:  # such as a key that was revoked
            raise RegistrationRefused(f"the public key is refused: {error}") from error
