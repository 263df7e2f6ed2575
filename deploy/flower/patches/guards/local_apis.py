"""Guards the HTTP APIs of a SuperLink and of a SuperNode, to which every user of the machine can connect.

- The control API, which registers nodes and accepts runs, demands the operator's secret. Flower's own account
  authentication checks the secret, so the unchanged `flwr` can send it as its access token.
- Over HTTP, only an executor that knows the secret for executors gets a task. A stock SuperLink or SuperNode
  that has no such secret gives a task to anyone who asks. The thread of `deploy.flower.patches.superexec`
  takes tasks without HTTP.
- The content of a request is read only if the sender is known, or if the content has at most `MAX_SIGNED`
  bytes and an executor may have signed the request. Stock Flower reads any content first.
- The connections of unknown senders are limited (`http_limits`).
"""

import hmac
import importlib
import os
import secrets
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from deploy.fleet import protocol
from deploy.flower.commands import CONTROL_SECRET
from deploy.flower.patches.guards import http_limits
from deploy.flower.patches.shared import replace

_Receive = Callable[[], Awaitable[dict[str, Any]]]

# The most bytes of an executor's request. The request must be read before its signature can be checked.
MAX_SIGNED = 65_536

_CONFIG = "flwr.superlink.config_loader"
_AUTH = "flwr.superlink.auth_plugin"
_STARLETTE = "starlette.concurrency"
# Flower imports these two modules inside functions, after the program's start.
_SUPERLINK_APP, _SUPERNODE_APP = "flwr.superlink.main", "flwr.supernode.main"


def guard_superlink() -> None:
    """Guard the HTTP APIs of a SuperLink."""
    demand_secret()
    guard(_SUPERLINK_APP)


def guard_supernode() -> None:
    """Guard the HTTP API of a SuperNode."""
    guard(_SUPERNODE_APP)


def demand_secret() -> None:
    """Let the control API demand the secret in the file that the environment names (`CONTROL_SECRET`)."""
    name = os.environ.pop(CONTROL_SECRET, None)  # hidden from the ServerApps that this process starts
    try:
        secret = Path(name or "").read_text().strip()
    except OSError as error:
        raise SystemExit(f"{CONTROL_SECRET} = {name}: must name the file with the secret: {error}") from error
    if not secret:
        raise SystemExit(f"{CONTROL_SECRET} = {name}: must name the file with the secret; this file is empty")
    account_plugin: Any = importlib.import_module(_AUTH).NoOpControlAuthnPlugin

    class Operator(account_plugin):  # type: ignore[misc]
        """Gives Flower's only account to a sender whose access token is the secret."""

        def validate_tokens_in_metadata(self, metadata: Any) -> Any:
            sent = str(dict(metadata).get(protocol.ACCESS_TOKEN, ""))
            if not hmac.compare_digest(sent.encode(), secret.encode()):
                return False, None
            return super().validate_tokens_in_metadata(metadata)

    replace(_CONFIG, get_control_authn_ee_plugins=lambda: {"oidc": Operator})
    os.environ["FLWR_OIDC_ENABLED"] = "1"


def guard(module: str) -> None:
    """Guard the HTTP API that the function `create_app` of a module makes."""
    http_limits.limit()
    create = importlib.import_module(module).create_app

    @wraps(create)
    def create_guarded(*arguments: Any, **settings: Any) -> Any:
        api = create(*arguments, **settings)
        if api.state.superexec_auth_secret is None:
            api.state.superexec_auth_secret = secrets.token_bytes(32)  # a secret that no executor has
        api.add_middleware(Guard, api=api)
        return api

    replace(module, create_app=create_guarded)


class Guard:
    """ASGI middleware that withholds the content of a request from the API if the sender is unknown.

    The API then refuses the empty request.
    """

    def __init__(self, app: Any, api: Any) -> None:
        self._app, self._state = app, api.state
        self._task_token = protocol.TASK_TOKEN.encode()
        self._in_thread = importlib.import_module(_STARLETTE).run_in_threadpool

    async def __call__(self, scope: Any, receive: _Receive, send: Any) -> None:
        """Pass a request on, but without its content if its sender is unknown and cannot have signed it."""
        if scope["type"] == "http":
            sender, headers = scope.get("client"), dict(scope["headers"])
            if await self._is_known(scope["path"], headers):
                http_limits.strangers.remove(sender)
            elif self._may_be_signed(scope["path"], headers):
                send = partial(_send_and_note, send, sender)
            else:
                receive = _without_content(receive)
        await self._app(scope, receive, send)

    async def _is_known(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if path.startswith("/v1/control/"):
            scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
            account = getattr(self._state, "account_access_dep", None)
            if account is None or scheme.lower() != "bearer":
                return False
            return bool(account.authn_plugin.validate_tokens_in_metadata([(protocol.ACCESS_TOKEN, token)])[0])
        if token := headers.get(self._task_token, b"").decode("latin-1"):
            state = self._state.runtime_state_factory.state()
            return await self._in_thread(state.get_task_by_token, token) is not None
        return False

    def _may_be_signed(self, path: str, headers: dict[bytes, bytes]) -> bool:
        """Tell whether a request may be an executor's. The API checks the request's signature later."""
        # With a transfer encoding, the content may be longer than its stated length.
        if not path.startswith("/v1/runtime/") or {self._task_token, b"transfer-encoding"} & headers.keys():
            return False
        length = headers.get(b"content-length", b"")
        return length.isdigit() and int(length) <= MAX_SIGNED


async def _send_and_note(send: Any, sender: Any, message: dict[str, Any]) -> None:
    """Pass on a part of an answer. If the API has accepted the request, the sender is no stranger."""
    if message["type"] == "http.response.start" and message["status"] == 200:
        http_limits.strangers.remove(sender)
    await send(message)


def _without_content(receive: _Receive) -> _Receive:
    begun = False

    async def receive_nothing() -> dict[str, Any]:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while (message := await receive())["type"] != "http.disconnect":
            pass
        return message

    return receive_nothing
