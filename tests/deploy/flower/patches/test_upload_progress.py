"""How much of a reply has arrived, as a ServerApp learns it from a real SuperLink over a slow line."""

import json
import threading
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace

import grpc
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.superlink.grid.http_grid import HttpGrid

from deploy.flower.patches.apps import upload_progress
from deploy.processes.ports import LOOPBACK
from tests.support.fleet import App, random_bytes
from tests.support.proxy import CHUNK, Proxy, Trouble

SIZE = 2_000_000  # bytes, in one chunk


def test_only_a_request_for_the_progress_of_replies_is_answered_with_it():
    asked = SimpleNamespace(pull_object=lambda asked, state, task: asked.object_id)
    upload_progress.answer_apps(asked)
    state = SimpleNamespace(received=lambda run, messages: dict.fromkeys(sorted(messages), run))

    def answer(name):
        return asked.pull_object(PullObjectRequest(object_id=name), state, SimpleNamespace(run_id=3))

    assert json.loads(answer(f"{upload_progress.ASKED}a;b").object_content) == {"a": 3, "b": 3}
    assert answer("a") == "a"


@pytest.mark.network
def test_a_serverapp_sees_how_a_reply_arrives_over_a_slow_line(superlink, monkeypatch):
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
    node.address = superlink.address
    for name in (f"{upload_progress.ASKED}{sent}", f"{sent},{upload_progress.ASKED}{sent}"):
        with suppress(grpc.RpcError):  # a refusal: only ServerApps may ask
            question = PullObjectRequest(node=node.id, run_id=app.run.run_id, object_id=name)
            assert not node.ask("PullObject", question).object_content
    for each in (app, stranger):
        each.close()


@pytest.mark.network
def test_a_stock_superlink_knows_nothing(superlink, monkeypatch):
    monkeypatch.setattr(upload_progress, "ASKED", "no such request:")
    app = App(superlink)
    assert upload_progress.received_bytes(app.grid, ["0" * 64]) == {}
    app.close()
