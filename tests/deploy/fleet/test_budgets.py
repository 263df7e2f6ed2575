"""Nodes that flood a real SuperLink are refused after their budgets, and cost others little."""

import time
from statistics import median
from types import SimpleNamespace

import grpc
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree

from deploy.fleet import budgets, front_door
from deploy.fleet.budgets import BYTES, COSTS, MOST_BYTES, MOST_POINTS, POINTS, REFUSED, Budgets
from deploy.fleet.gate import connection_gate
from tests.support.fleet import App, random_bytes
from tests.support.flood import Flood

NODE, OTHER = 7, 8
ATTACKERS = 4


@pytest.fixture
def seconds(monkeypatch):
    """Return a clock that only the test moves."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_a_node_may_send_a_burst_and_then_as_much_as_its_budget_grows(seconds):
    spent = Budgets()
    burst = [spent.begin(NODE, "ActivateNode") for _ in range(100)]
    assert sum(burst) == MOST_POINTS / COSTS["ActivateNode"]
    assert spent.begin(OTHER, "ActivateNode")
    seconds.now += 10.0
    later = [spent.begin(NODE, "PullObject") for _ in range(10_000)]
    assert sum(later) == 10 * POINTS
    seconds.now += 1000.0  # no more than the burst is saved up
    assert sum(spent.begin(NODE, "PullObject") for _ in range(10_000)) == MOST_POINTS


def test_refused_requests_cost_more(seconds):
    spent, admitted = Budgets(), 0
    while spent.begin(NODE, "PullObject"):
        admitted += 1
        spent.refused(NODE)
    assert admitted == pytest.approx(MOST_POINTS / (1 + REFUSED), abs=1)


def test_bodies_cost_bytes_unless_they_are_given_back(seconds):
    spent = Budgets()
    for _ in range(100):  # objects of a reply
        assert spent.begin(NODE, "PushObject")
        spent.spend_bytes(NODE, 6_000_000)
        spent.spend_bytes(NODE, -6_000_000)
    spent.spend_bytes(NODE, int(MOST_BYTES) + 1000)
    assert not spent.begin(NODE, "PullMessages")
    seconds.now += 1.0
    assert spent.begin(NODE, "PullMessages")
    spent.spend_bytes(NODE, int(BYTES))
    assert not spent.begin(NODE, "PullMessages")


def test_honest_nodes_stay_within_their_budgets(seconds):
    """As many requests as a SuperNode sends whose model is large, or that does nothing but answer."""
    spent = Budgets()
    for _ in range(1200):  # a minute of 20 exchanges a second
        seconds.now += 0.05
        for method in ("PullMessages", "PullObject", "ConfirmMessageReceived", "PushMessages", "PushObject"):
            assert spent.begin(NODE, method)
            spent.spend_bytes(NODE, 1000)
    for _ in range(5600):  # a model of 28 GB at 125 MB/s
        seconds.now += 0.04
        assert spent.begin(OTHER, "PushObject")
    for _ in range(60):  # a device that is started again and again
        seconds.now += 1.0
        assert spent.begin(OTHER, "ActivateNode")


# --- floods against a real SuperLink ---------------------------------------------------------------------


@pytest.fixture
def attackers(superlink):
    nodes = [superlink.node(f"attacker {number}") for number in range(ATTACKERS)]
    for node in nodes:
        node.activate()
    return nodes


def work_until_answered(superlink):
    """Return the CPU time that the SuperLink takes from a newcomer's first request until its answer (s).

    In contrast to the newcomer's waiting time, it does not depend on what else the machine does.
    """
    node = superlink.node("newcomer")
    before = superlink.cpu
    node.activate()
    return superlink.cpu - before


def activation(node):
    return ActivateNodeRequest(public_key=node.public, heartbeat_interval=30)


def announcement(app, node):
    """Return an announcement of 300 kB of a reply."""
    app.send(node, 1000)
    reply = Message(RecordDict({"a": ArrayRecord([random_bytes(1000)])}), reply_to=node.receive())
    request = node.announce(reply)
    tree = request.message_object_trees[0]
    tree.children.extend([ObjectTree(object_id="x" * 295)] * 1000)
    assert 300_000 < request.ByteSize() < 320_000
    return request


@pytest.mark.network
@pytest.mark.parametrize("method", ["ActivateNode", "PushMessages"])
def test_nodes_that_flood_keep_no_newcomer_waiting_and_take_few_threads(superlink, attackers, method):
    app = App(superlink)
    requests = {
        node: activation(node) if method == "ActivateNode" else announcement(app, node) for node in attackers
    }
    alone = median(work_until_answered(superlink) for _ in range(9))
    began = time.monotonic()
    with Flood(superlink, requests, method) as flood:
        during = [work_until_answered(superlink) for _ in range(9)]
        threads = superlink.threads
    seconds = time.monotonic() - began
    app.close()
    assert median(during) < max(6 * alone, 0.12)  # the clock of a process's CPU time counts in .01 s
    assert threads < 100
    admitted = sum(flood.codes.get(code, 0) for code in ("OK", "FAILED_PRECONDITION", "PERMISSION_DENIED"))
    cost = COSTS[method] + (REFUSED if method == "PushMessages" else 0)
    assert 0 < admitted < ATTACKERS * ((MOST_POINTS + POINTS * seconds) / cost + front_door.CALLS_PER_NODE)


@pytest.mark.network
@pytest.mark.parametrize("registered", [False, True], ids=["stranger", "registered node"])
def test_whoever_knows_the_key_of_a_node_cannot_spend_its_budget(superlink, registered):
    node, attacker = superlink.node("honest"), superlink.node("attacker" if registered else "")
    node.activate()
    own = SendNodeHeartbeatRequest(node=attacker.id, heartbeat_interval=30)
    public = attacker.public
    attempts = 0
    while attempts * COSTS["ActivateNode"] <= 2 * MOST_POINTS:
        calls = attacker.connect()
        if registered:  # the connection has brought a signed request before
            assert calls["SendNodeHeartbeat"](own, metadata=attacker.metadata, timeout=30).success
        attacker.public = node.public
        for _ in range(connection_gate.REFUSALS - 1):
            with pytest.raises(grpc.RpcError) as error:
                calls["ActivateNode"](activation(node), metadata=attacker.metadata, timeout=30)
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
            attempts += 1
        attacker.public = public
        attacker.close()
    node.activate()
