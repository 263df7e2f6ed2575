"""How much of a reply has arrived, as a ServerApp learns it from a real SuperLink over a slow line."""

import threading
from itertools import pairwise

import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.superlink.grid.http_grid import HttpGrid

from deploy.flower.patches.apps import upload_progress
from deploy.processes.ports import LOOPBACK
from tests.support.fleet import App, SuperLink, random_bytes
from tests.support.proxy import CHUNK, Proxy, Trouble

pytestmark = pytest.mark.network
SIZE = 2_000_000  # bytes, in one chunk


def test_a_serverapp_sees_how_a_reply_arrives_over_a_slow_line(
    superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpGrid, "received_bytes", upload_progress.received_bytes, raising=False)
    node, line = superlink.node("slow"), Proxy(superlink.port)
    node.address = f"{LOOPBACK}:{line.port}"
    node.activate()
    app, stranger = App(superlink), App(superlink)
    sent, other = (each.send(node, SIZE) for each in (app, app))
    content = RecordDict({"arrays": ArrayRecord([random_bytes(SIZE + 1)])})
    reply = Message(content, reply_to=node.receive())
    node.latency()  # requests without a part of a reply do not count
    assert app.grid.received_bytes([sent, other]) == {}
    line.suffer(Trouble.DELAY, 0.05)  # for each `CHUNK`
    upload = threading.Thread(target=node.answer, args=(reply,))
    upload.start()
    seen = [0]
    while upload.is_alive():
        received = app.grid.received_bytes([sent, other])
        assert received.keys() <= {sent}
        assert stranger.grid.received_bytes([sent, other]) == {}
        seen.append(received.get(sent, 0))
    upload.join()
    line.close()
    assert all(before <= after for before, after in pairwise(seen))
    assert len(set(seen)) > 5
    assert SIZE - 4 * CHUNK < seen[-1] < 1.1 * SIZE
    for each in (app, stranger):
        each.close()


def test_without_this_patch_of_the_superlink_nothing_is_known(
    superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_progress, "ASKED", "no such request:")
    app = App(superlink)
    assert upload_progress.received_bytes(app.grid, ["0" * 64]) == {}
    app.close()
