"""The page's HTTP interface: a few files and JSON values below a secret path, all read-only."""

import hmac
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.page import views
from deploy.page.run_sources import Run, RunSources
from deploy.page.trial_numbers import TrialNumbers

STATIC = Path(__file__).parent / "static"
FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "chart_forms.js": ("chart_forms.js", "text/javascript; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
LONGEST_PATH = 2000  # the most bytes of a path and its query together
HEADERS = {
    # Nothing but the page's own files is loaded, and no text becomes a program or a style.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",  # the address holds the secret
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
    # A connection serves one request, so that it can be closed after `http_server.LONGEST` seconds.
    "connection": "close",
}


class _Gate:
    """Passes on only requests that read a path below the secret path. Its own answers reveal nothing."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [each for each in message["headers"] if each[0].decode() not in HEADERS]
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": kept + added}
            await send(message)

        length = len(scope["raw_path"]) + len(scope["query_string"])
        secret, slash, rest = scope["path"].removeprefix("/").partition("/")
        known = hmac.compare_digest(secret.encode(), self._token)  # takes the same time for each wrong secret
        if scope["method"] not in ("GET", "HEAD"):
            answer: ASGIApp = Response("this page can only be read\n", 405, {"allow": "GET, HEAD"})
        elif length > LONGEST_PATH:
            answer = Response("the address is too long\n", 414)
        elif not known or not slash:
            answer = Response("not found\n", 404)
        else:
            scope = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
            answer = self._app
        await answer(scope, receive, with_headers)


def page_app(sources: RunSources, token: str) -> ASGIApp:
    """Return the page as an ASGI app."""
    if not token:
        raise ValueError("token = '': must be a secret; without one, everybody could read the page")
    page = _Page(sources)
    routes = [Route(f"/{name}", _file(*FILES[name])) for name in FILES]
    routes += [Route(f"/data/{name}", page.answer(view)) for name, view in page.views.items()]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return _Gate(app, token)


def _file(name: str, kind: str) -> Callable[[Request], Any]:
    async def send(request: Request) -> Response:
        return Response((STATIC / name).read_bytes(), media_type=kind)

    return send


class _Page:
    """Answers requests for data. One request is answered at a time, outside the event loop."""

    def __init__(self, sources: RunSources) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self.views: dict[str, Callable[[dict[str, str]], Any]] = {
            "state": self._state,
            "curves": lambda query: views.curves(
                self._trial(query), _whole(query, "start", 0), _whole(query, "width", 1)
            ),
            "selections": lambda query: views.selections(self._trial(query), query.get("order", "size")),
            "clients": self._clients,
            "groups": lambda query: views.groups(self._trial(query)),
            "timeline": self._timeline,
            "notes": lambda query: views.notes(self._trial(query)),
            "log": self._log,
        }

    def answer(self, view: Callable[[dict[str, str]], Any]) -> Callable[[Request], Any]:
        """Return the endpoint that sends the result of ``view`` as JSON."""

        def computed(query: dict[str, str]) -> tuple[bytes, int]:
            with self._lock:
                try:
                    return json.dumps(view(query), allow_nan=False, separators=(",", ":")).encode(), 200
                except KeyError:
                    return b'{"missing":true}', 404

        async def send(request: Request) -> Response:
            content, status = await run_in_threadpool(computed, dict(request.query_params))
            return Response(content, status, media_type="application/json")

        return send

    def _run(self, query: dict[str, str]) -> Run:
        run = self._sources.run(query.get("run"))
        if run is None:
            raise KeyError("run")
        return run

    def _trial(self, query: dict[str, str]) -> TrialNumbers:
        return self._run(query).trials[query.get("trial", "")]

    def _state(self, query: dict[str, str]) -> Any:
        run = self._sources.run(query.get("run"))
        nodes = self._sources.nodes()
        now = time.time()
        return {
            "name": self._sources.name,
            "runs": self._sources.runs(),
            "run": run.folder.name if run else None,
            "complete": run is None or run.complete,
            "now": now,
            "online": None if nodes is None else sum(node.is_online(now) for node in nodes.values()),
            "nodes": None if nodes is None else len(nodes),
            "trials": {
                name: views.summary(trial, run.state(name))
                for name, trial in (run.trials if run else {}).items()
            }
            if run
            else {},
            "logs": list(self._sources.logs(run)),
        }

    def _clients(self, query: dict[str, str]) -> Any:
        return views.clients_page(
            self._trial(query) if "trial" in query else TrialNumbers(),  # before a run, there are only nodes
            self._sources.nodes(),
            sort=query.get("sort", "name"),
            descending=query.get("descending") == "1",
            find=query.get("find", "")[:200],
            page=_whole(query, "page", 0),
            now=time.time(),
        )

    def _timeline(self, query: dict[str, str]) -> Any:
        run = self._run(query)
        name = query.get("trial", "")
        folder = run.folder if (run.folder / "history.jsonl").is_file() else run.folder / name
        number = _whole(query, "round", -1)
        found = views.timeline(run.trials[name], None if number < 0 else number)
        return {
            **found,
            "now": views.under_way(run.trials[name], self._sources.open_messages(folder), time.time()),
        }

    def _log(self, query: dict[str, str]) -> Any:
        start = _whole(query, "start", -1)
        run = self._sources.run(query.get("run"))
        try:
            begin, end, lines = self._sources.log(run, query.get("name", ""), None if start < 0 else start)
        except OSError:
            return {"start": 0, "end": 0, "lines": []}
        return {"start": begin, "end": end, "lines": lines}


def _whole(query: dict[str, str], name: str, default: int) -> int:
    """Return a whole number of a query; the default if it is missing or not in 0..10^15-1."""
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else default
