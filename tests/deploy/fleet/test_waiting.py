"""A real SuperLink and a node whose held heartbeat alone says that it is there."""

import signal
import sqlite3
import sys
import time

import pytest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

from deploy.fleet import wire
from deploy.fleet.duties import presence
from deploy.processes.groups import wait_until
from tests.support.fleet import SuperLink
from tests.support.proxy import Proxy, Trouble

pytestmark = pytest.mark.network


@pytest.fixture
def superlink(tmp_path):
    link = SuperLink(tmp_path)
    yield link
    link.end()


@pytest.fixture
def node(superlink):
    made = superlink.node("waits")
    made.activate()
    yield made
    made.close()


def hold(node):
    request = SendNodeHeartbeatRequest(node=node.id, heartbeat_interval=30)
    call = node.connect()["SendNodeHeartbeat"]
    return call.future(request, metadata=[*node.metadata, wire.HELD, wire.LONG])


def online_for(superlink):
    """Return for how many seconds the node is still online in the database; 0.0 if it is offline."""
    with sqlite3.connect(f"file:{superlink.database}?mode=ro", uri=True) as database:
        ((status, until),) = database.execute("SELECT status, online_until FROM node").fetchall()
    return max(0.0, until - time.time()) if status == "online" else 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="unplugs a connection in the kernel")
def test_a_node_is_online_until_its_cable_is_pulled(superlink, node):
    proxy = Proxy(superlink.port)
    node.address = f"127.0.0.1:{proxy.port}"
    held = hold(node)
    assert wait_until(lambda: online_for(superlink) > presence.FOREVER, 10)
    proxy.suffer(Trouble.SILENCE)
    assert wait_until(lambda: online_for(superlink) == 0.0, 15)
    assert not held.done()  # the node does not know yet
    proxy.close()


@pytest.mark.parametrize("kill", [False, True])
def test_a_node_that_does_not_come_back_after_the_superlinks_end_is_offline_soon(superlink, node, kill):
    held = hold(node)
    assert wait_until(lambda: online_for(superlink) > presence.FOREVER, 10)
    assert not held.done()
    if kill:
        node.close()
        superlink.restart()
        superlink.state.get_node_info()  # the state looks which nodes are due
    else:
        superlink.process.signal_group(signal.SIGTERM)
        assert wait_until(lambda: superlink.process.returncode is not None, 20)
    assert online_for(superlink) <= presence.RETURN + presence.RETURN_EACH
