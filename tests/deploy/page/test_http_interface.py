"""The page over HTTP: who may read it, what it sends, and what it costs."""

import asyncio
import contextlib
import json
import re
import socket
import threading

import httpx
import pytest

from deploy.page import http_server as serving
from deploy.page.http_interface import FILES, STATIC, page_app
from deploy.page.http_server import listening
from deploy.page.run_sources import RunSources
from deploy.page.secret_link import address, kept_token, new_token

from ...support.disks import full
from ...support.states import made
from .test_run_sources import MARKUP, lines_of

TOKEN = "a-secret"


def write(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def folder(tmp_path):
    lines = lines_of([{0: (1, True)}, {0: (1, False), 3: (2, True)}])
    lines[2]["client_ids"][0] = lines[4]["client_ids"][0] = lines[3]["client_ids"][0] = MARKUP
    write(tmp_path / "run" / "md", lines)
    (tmp_path / "run" / "logs").mkdir()
    (tmp_path / "run" / "logs" / "md.log").write_text(f"hello {MARKUP}\n")
    return tmp_path / "run"


class Client:
    """Sends requests to the app, without a network."""

    def __init__(self, app):
        self._app = app

    def request(self, method, path):
        async def ask():
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
                return await client.request(method, path)

        return asyncio.run(ask())

    def get(self, path):
        return self.request("GET", path)


@pytest.fixture
def client(folder):
    return Client(page_app(RunSources(folder), TOKEN))


ALL = [f"/{name}" for name in FILES] + [
    "/data/state",
    *(
        f"/data/{name}?trial=md"
        for name in ("curves", "selections", "clients", "groups", "timeline", "notes")
    ),
    "/data/log?name=md",
]


@pytest.mark.parametrize("path", ALL)
def test_what_is_sent_is_protected(client, path):
    answer = client.get(f"/{TOKEN}{path}")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["connection"] == "close"
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["content-type"].split(";")[0] == (
        "application/json" if "/data/" in path else FILES[path[1:]][1].split(";")[0]
    )


@pytest.mark.parametrize("secret", ["", "a-secre", "a-secret2", "A-SECRET", "é", "a-secret%00", "..", "data"])
def test_without_the_secret_nothing_is_told(client, secret):
    wrong = [client.get(f"/{secret}{path}") for path in ("", *ALL, "/nothing")]
    assert {(answer.status_code, answer.text) for answer in wrong} == {(404, "not found\n")}
    assert all("content-security-policy" in answer.headers for answer in wrong)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_the_page_can_only_be_read(client, method):
    answer = client.request(method, f"/{TOKEN}/data/state")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_what_does_not_exist(client):
    for path in (
        "page.py",
        "../app.py",
        "%2e%2e/app.py",
        "data/nothing",
        "data/",
        "data/curves",
        "page.css/",
    ):
        assert client.get(f"/{TOKEN}/{path}").status_code == 404, path
    for query in ("curves?trial=../md", "curves?trial=x", "log?name=../../history", "log?name=/etc/passwd"):
        assert client.get(f"/{TOKEN}/data/{query}").status_code == 404, query
    assert client.get(f"/{TOKEN}/data/state?{'x' * 3000}").status_code == 414
    for query in (
        "start=-1&width=x",
        "start=1e9",
        "start=" + "9" * 400,
        "page=-5",
        "round=x",
        "sort=__class__",
    ):
        for name in ("curves", "clients", "timeline"):
            assert client.get(f"/{TOKEN}/data/{name}?trial=md&{query}").status_code == 200, query


def test_a_clients_text_is_sent_as_data(client):
    table = client.get(f"/{TOKEN}/data/clients?trial=md").json()
    assert MARKUP in [row["name"] for row in table["rows"]]
    assert client.get(f"/{TOKEN}/data/log?name=md").json()["lines"] == [f"hello {MARKUP}"]
    assert client.get(f"/{TOKEN}/data/state").json()["trials"]["md"]["round"] == 2


def test_before_the_first_run_there_are_devices(tmp_path):
    (tmp_path / "server.json").write_text("{}")
    state = made(tmp_path / "superlink.db")
    markup, unnamed, gone = (
        state.create_node("flwr_aid", "owner", str(name).encode(), 0, name=name)
        for name in (MARKUP, None, "gone")
    )
    state.activate(markup, 30)
    state.activate(unnamed, 30)
    state.go_offline(unnamed)
    state.delete_node("flwr_aid", gone)
    client = Client(page_app(RunSources(tmp_path), TOKEN))
    page = client.get(f"/{TOKEN}/data/state").json()
    assert (page["run"], page["online"], page["nodes"]) == (None, 1, 2)
    found = client.get(f"/{TOKEN}/data/clients").json()
    assert found["rows"] == []
    assert [each["name"] for each in found["others"]] == [MARKUP, f"node-{unnamed}"]
    assert [each["state"] for each in found["others"]] == ["online", "offline"]
    assert found["others"][1]["seen"] == pytest.approx(page["now"], abs=5)


def test_the_pages_own_files_load_nothing_from_elsewhere():
    for name, _ in FILES.values():
        text = (STATIC / name).read_text("utf-8")
        hosts = set(re.findall(r"https?://[^\s\"'<>)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not hosts, name
        assert "@import" not in text
    scripts = "".join((STATIC / name).read_text("utf-8") for name in ("page.js", "chart_forms.js"))
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert danger not in scripts
    page = (STATIC / "index.html").read_text("utf-8")
    assert not re.search(r"\son\w+=|style=|<script>|javascript:", page)


@pytest.fixture
def served(folder, monkeypatch):
    monkeypatch.setattr(serving, "CONNECTIONS", 8)
    listener, ready = listening(0), threading.Event()
    server = serving.make_server(page_app(RunSources(folder), TOKEN), started=ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(20)


@pytest.mark.parametrize("longest", [1.0, pytest.param(600.0, marks=pytest.mark.slow)])
def test_slow_and_many_connections_cannot_hold_the_page(served, monkeypatch, longest):
    monkeypatch.setattr(serving, "LONGEST", longest)
    held = []
    for _ in range(40):
        one = socket.create_connection(("127.0.0.1", served))
        one.sendall(b"GET /a-secret/ HTTP/1.1\r\nHost: x\r\nX-Slow: ")  # never ends its headers
        held.append(one)
    answer = httpx.get(f"{address(served, TOKEN)}data/state", timeout=20)
    assert answer.json()["trials"]["md"]["round"] == 2
    for one in held if longest == 1.0 else held[:32]:  # closed because they are slow, or the oldest of many
        one.settimeout(20)
        with contextlib.suppress(ConnectionError):
            assert one.recv(1) == b""
    for one in held:
        one.close()


def test_long_headers_are_refused(served):
    with socket.create_connection(("127.0.0.1", served)) as one:
        one.settimeout(10)
        try:
            for _ in range(40):
                one.sendall(b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 10_000)
            answer = one.recv(100)
        except ConnectionError:
            answer = b""
    assert answer == b"" or b" 400 " in answer


def test_only_this_machine_reaches_the_page(served):
    names = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for name in names - {"127.0.0.1"}:
        if not name.startswith("127."):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((name, served), timeout=5)


def test_secrets_are_long_and_differ():
    assert len({new_token() for _ in range(100)}) == 100
    assert min(len(new_token()) for _ in range(100)) >= 32


def test_a_full_disk_does_not_open_the_page_to_everybody(folder):
    secret = folder / "page.secret"
    with full(), pytest.raises(OSError):  # noqa: PT011 (the system's message for a full disk differs)
        kept_token(secret)
    token = kept_token(secret)
    assert len(token) >= 32
    assert kept_token(secret) == token
    secret.write_text("")  # the machine lost its power before the content was on the disk
    assert len(kept_token(secret)) >= 32
    with pytest.raises(ValueError, match="token = '': must be a secret"):
        page_app(RunSources(folder), "")
