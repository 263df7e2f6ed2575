"""Nothing waits for what is there, nothing is lost, and where Flower is another one it stays as it is."""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from logging import getLogger
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import noop, rounds
from benchmarks.throughput.processes import tree
from deploy.engines.cluster import MARK, LocalCluster, Programs
from deploy.flower import launch
from deploy.processes.groups import processes_with, wait_until

ROOT = Path(launch.__file__).parents[2]
ONE, TWO, RUN = 11, 12, 1  # nodes, and a run


# --- where Flower is another one ------------------------------------------------------------------------


def test_this_flower_is_the_one_that_it_was_written_for() -> None:
    assert launch.unsupported(launch.ALL) is None


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("version", lambda _: "1.38.0", r"Flower is 1.38.0, and this was written for 1.39.0"),
        ("_USED", {"flwr": ("flwr.no_such_module:name",)}, r"no flwr.no_such_module:name"),
        ("_USED", {"flwr": ("flwr.cli.app:app.no_such_name",)}, r"no flwr.cli.app:app.no_such_name"),
    ],
)
def test_programs_of_another_flower_stay_as_they_are_and_a_warning_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, attribute: str, value: Any, reason: str
) -> None:
    monkeypatch.setattr(launch, attribute, value)
    monkeypatch.setattr(getLogger("flwr"), "propagate", True)
    programs = launch.commands(["flwr"])
    assert programs["flwr"] is importlib.import_module("flwr.cli.app").app
    (warning,) = caplog.messages
    assert "Rounds will wait as Flower's do" in warning
    assert reason.replace("\\", "") in warning


def test_the_launcher_runs_the_ordinary_program_of_another_flower() -> None:
    script = "from deploy.flower import launch; launch.WRITTEN_FOR = '1.0'; launch.main(['flower-supernode', '--version'])"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Rounds will wait" in done.stderr + done.stdout
    assert "Flower version: 1.39.0" in done.stdout


def test_the_launcher_says_what_it_can_launch() -> None:
    with pytest.raises(SystemExit, match=r"usage: python -m deploy.flower.launch .*flower-supernode"):
        launch.main(["flwr", "run"])


# --- requests that are held -----------------------------------------------------------------------------


class Store:
    """A state that holds messages by node, and replies, as the SuperLink's does."""

    def __init__(self) -> None:
        self.messages: dict[int, list[str]] = {}
        self.pulls = 0

    def store_message_and_object_tree(
        self, message: Any, missing: list[str], session_id: str
    ) -> tuple[bool, list[str]]:
        self.messages.setdefault(message.metadata.dst_node_id, []).append(message.text)
        return True, missing

    def store_object(self, run_id: int, session_id: str, object_id: str, content: bytes) -> bool:
        return content != b"refused"

    def send(self, node: int, text: str, *, missing: tuple[str, ...] = (), session: str = "s") -> None:
        metadata = SimpleNamespace(dst_node_id=node, run_id=RUN)
        message = SimpleNamespace(metadata=metadata, text=text)
        self.store_message_and_object_tree(message, list(missing), session)

    def send_part(self, name: str, *, session: str = "s", content: bytes = b"") -> None:
        self.store_object(RUN, session, name, content)

    def wait_for_looks(self, count: int) -> None:
        """Wait until it has been looked for messages so often."""
        assert wait_until(lambda: self.pulls == count, 30)


class Servicer:
    def __init__(self, store: Store) -> None:
        self.store = store

    def PullMessages(self, asked: Any, context: Any) -> Any:  # noqa: N802
        self.store.pulls += 1
        return SimpleNamespace(messages_list=self.store.messages.pop(asked.node.node_id, []))


class Call:
    """The server's side of a gRPC call."""

    def __init__(self, *, active: bool = True) -> None:
        self.active = active
        self.over: Callable[[], None] = lambda: None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.over = callback
        return self.active


class Asking(threading.Thread):
    """A node that asks for messages."""

    def __init__(self, servicer: Servicer, node: int) -> None:
        super().__init__(daemon=True)
        self.call = Call()
        self.seconds = float("inf")
        self.messages: list[str] | None = None
        self._servicer, self._node = servicer, node
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        self.messages = list(self._servicer.PullMessages(asked_by(self._node), self.call).messages_list)
        self.seconds = time.monotonic() - began


def asked_by(node: int) -> Any:
    return SimpleNamespace(node=SimpleNamespace(node_id=node))


@pytest.fixture
def servicer() -> Servicer:
    class OwnStore(Store):
        pass

    class OwnServicer(Servicer):
        pass

    held = launch._HeldRequests()
    held.notice_messages_in(OwnStore)
    held.hold_for_nodes(OwnServicer)
    return OwnServicer(OwnStore())


def test_a_held_request_is_answered_when_there_is_a_message_for_its_node(servicer: Servicer) -> None:
    one, two = Asking(servicer, ONE), Asking(servicer, TWO)
    servicer.store.wait_for_looks(2)
    assert one.messages is None
    servicer.store.send(TWO, "hello")
    two.join(10)
    assert two.messages == ["hello"]
    assert one.messages is None
    assert servicer.store.pulls == 3  # nobody looks without a reason
    servicer.store.send(ONE, "too")
    one.join(10)
    assert one.messages == ["too"]


def test_a_message_that_is_there_is_not_waited_for(servicer: Servicer) -> None:
    servicer.store.send(ONE, "hello")
    for text in ("hello", "again"):
        asking = Asking(servicer, ONE)
        asking.join(10)
        assert asking.messages == [text]
        assert asking.seconds < launch.HOLD / 2
        servicer.store.send(ONE, "again")


def test_a_message_is_there_when_all_its_parts_are(servicer: Servicer) -> None:
    one, two = Asking(servicer, ONE), Asking(servicer, TWO)
    servicer.store.wait_for_looks(2)
    servicer.store.send(ONE, "hello", missing=("model", "config"))
    servicer.store.send(TWO, "too", missing=("model",))  # the model is sent once
    servicer.store.send_part("config")
    servicer.store.send_part("model", session="another")
    servicer.store.send_part("model", content=b"refused")
    time.sleep(0.2)
    assert one.messages is two.messages is None
    assert servicer.store.pulls == 2
    servicer.store.send_part("model")
    for asking, text in ((one, "hello"), (two, "too")):
        asking.join(10)
        assert asking.messages == [text]


def test_a_part_whose_session_is_not_named_is_taken_note_of(servicer: Servicer) -> None:
    asking = Asking(servicer, ONE)
    servicer.store.wait_for_looks(1)
    servicer.store.send(ONE, "hello", missing=("model",))
    servicer.store.send_part("model", session="")  # by a SuperNode of an earlier version
    asking.join(10)
    assert asking.messages == ["hello"]


def test_no_more_than_so_many_incomplete_messages_are_remembered(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "MAX_INCOMPLETE", 2)
    asking = Asking(servicer, ONE)
    servicer.store.wait_for_looks(1)
    servicer.store.send(ONE, "hello", missing=("model",), session="a")
    servicer.store.send(TWO, "hello", missing=("model",), session="b")
    time.sleep(0.1)
    assert asking.messages is None
    servicer.store.send(TWO, "hello", missing=("model",), session="c")
    asking.join(10)
    assert asking.messages == ["hello"]


def test_who_was_told_that_there_is_nothing_does_not_look_again_until_there_is_something(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "HOLD", 0.2)
    Asking(servicer, ONE).join(10)
    assert servicer.store.pulls == 2  # at the beginning and at the end of its time
    Asking(servicer, ONE).join(10)
    assert servicer.store.pulls == 3  # only at the end
    monkeypatch.setattr(launch, "HOLD", 20.0)
    servicer.store.send(ONE, "hello")
    asking = Asking(servicer, ONE)
    asking.join(10)
    assert asking.messages == ["hello"]
    assert servicer.store.pulls == 4


def test_a_request_is_not_held_for_ever(servicer: Servicer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "HOLD", 0.2)
    asking = Asking(servicer, ONE)
    asking.join(5)
    assert asking.messages == []
    assert 0.2 <= asking.seconds < 2


def test_a_node_that_asks_anew_or_is_gone_does_not_take_a_message_with_its_old_request(
    servicer: Servicer,
) -> None:
    old = Asking(servicer, ONE)
    servicer.store.wait_for_looks(1)
    new = Asking(servicer, ONE)
    old.join(10)
    assert old.messages == []
    gone = Asking(servicer, TWO)
    servicer.store.wait_for_looks(2)  # not by the new one, which knows that there is nothing
    gone.call.over()
    gone.join(10)
    assert gone.messages == []
    for node in (ONE, TWO):
        servicer.store.send(node, "hello")
    new.join(10)
    assert new.messages == ["hello"]
    assert servicer.store.messages == {TWO: ["hello"]}


def test_more_requests_than_can_be_held_are_answered_at_once(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "MAX_HELD", 1)
    held = launch._HeldRequests()

    class OwnServicer(Servicer):
        pass

    held.hold_for_nodes(OwnServicer)
    few = OwnServicer(Store())
    first = Asking(few, ONE)
    few.store.wait_for_looks(1)
    second = Asking(few, TWO)
    second.join(10)
    assert second.messages == []
    first.call.over()
    first.join(10)


class Refusal(Exception):  # noqa: N818
    pass


class Context:
    """What a gRPC handler is told and tells."""

    said = b""

    def abort(self, code: Any, details: str) -> None:
        self.said, self.status = details.encode(), code
        raise Refusal(details)

    def code(self) -> Any:
        return getattr(self, "status", None)

    def details(self) -> bytes:
        return self.said

    def peer(self) -> str:
        return "ipv4:192.0.2.7:1"


def test_a_node_is_taken_online_by_who_has_its_key_alone_and_refusals_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getLogger("flwr"), "propagate", True)
    grpc = importlib.import_module("grpc")
    activate = importlib.import_module(launch._FLEET_MESSAGES).ActivateNodeRequest

    class Interceptor:
        def intercept_service(self, continuation: Any, call: Any) -> Any:
            return continuation(call)

    def handle(request: Any, context: Context) -> object:
        if request == "another's":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID")
        return "done" if request != "broken" else 1 / 0

    launch._guard_nodes(Interceptor)
    call = SimpleNamespace(method="/Fleet/Do", invocation_metadata=(("flwr-public-key-bin", b"mine"),))
    intercept = Interceptor().intercept_service
    assert intercept(lambda call: None, call) is None
    handler = intercept(lambda call: grpc.unary_unary_rpc_method_handler(handle), call).unary_unary
    assert handler(activate(public_key=b"mine"), Context()) == "done"
    assert handler("anything", Context()) == "done"
    with pytest.raises(ZeroDivisionError):
        handler("broken", Context())
    assert caplog.messages == []
    for request, reason in (
        (activate(public_key=b"yours"), "Another node's key"),
        ("another's", "Invalid node ID"),
    ):
        with pytest.raises(Refusal):
            handler(request, Context())
        assert caplog.messages[-1] == f"[/Fleet/Do] Refused: {reason}, from ipv4:192.0.2.7:1"
        caplog.clear()


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A ServerApp's way to the SuperLink: `pull(ids)` returns the replies and how long that took."""
    monkeypatch.setattr(launch, "LOOK", 20.0)
    monkeypatch.setattr(launch, "GATHER", 10.0)

    class OwnStore(Store):
        pass

    store = OwnStore()

    def look(asked: Any, state: Store, task: Any) -> Any:
        store.pulls += 1
        here = store.messages.get(superlink(), [])
        found = [text for text in here if text in asked.message_ids]
        here[:] = [text for text in here if text not in found]
        return SimpleNamespace(messages_list=found)

    handlers = SimpleNamespace(pull_messages=look)
    held = launch._HeldRequests()
    held.notice_messages_in(OwnStore)
    held.hold_for_apps(handlers)

    def pull(*ids: str) -> tuple[list[str], float]:
        began = time.monotonic()
        response = handlers.pull_messages(
            SimpleNamespace(message_ids=list(ids)), store, SimpleNamespace(run_id=RUN)
        )
        return list(response.messages_list), time.monotonic() - began

    def reply(*ids: str, after: float = 0.0) -> None:
        for each in ids:
            threading.Timer(after, store.send, (superlink(), each)).start()

    return SimpleNamespace(store=store, pull=pull, reply=reply)


def superlink() -> int:
    node: int = importlib.import_module(launch._CONSTANTS).SUPERLINK_NODE_ID
    return node


def test_replies_that_come_together_are_handed_over_together(app: Any) -> None:
    app.reply("a", after=0.5)
    app.reply("b", after=0.6)
    replies, seconds = app.pull("a", "b")
    assert replies == ["a", "b"]
    assert seconds < 5  # not longer, once all are there
    assert app.store.pulls == 2


def test_a_reply_does_not_wait_for_the_others_for_long(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GATHER", 0.3)
    app.reply("a", after=0.5)
    replies, seconds = app.pull("a", "b")
    assert replies == ["a"]
    assert 0.75 < seconds < 10
    monkeypatch.setattr(launch, "LOOK", 0.6)
    replies, seconds = app.pull("b")
    assert replies == []
    assert seconds > 0.55
    assert app.store.pulls == 3  # it knew that there was none: only at the end of its time


def test_a_reply_that_was_there_before_it_was_asked_for_is_not_waited_for(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.store.send(superlink(), "b")
    with monkeypatch.context() as shortly:
        shortly.setattr(launch, "LOOK", 0.2)
        assert app.pull("a")[0] == []
    replies, seconds = app.pull("a", "b")
    assert replies == ["b"]
    assert seconds < 5


# --- what is not done anew in every request -------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=1000.0, slept=[])
    monkeypatch.setattr(
        launch, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda s: clock.slept.append(s))
    )
    return clock


def test_what_is_remembered_is_asked_anew_after_a_while_and_what_must_not_be_always(clock: Any) -> None:
    asked = []

    def find(owner: str, key: str) -> str | None:
        asked.append(key)
        return None if key == "unknown" else f"{owner}'s {key}"

    remembered = launch._remembered(find, by=1, but=None)
    assert [remembered("a", "key") for _ in range(3)] == ["a's key"] * 3
    assert [remembered("a", "unknown") for _ in range(3)] == [None] * 3
    assert asked == ["key", "unknown", "unknown", "unknown"]
    clock.now += launch.LOOK
    assert remembered("a", "key") == "a's key"
    assert asked[4:] == ["key"]


def test_a_state_is_cleaned_up_once_in_a_while_each_for_itself(clock: Any) -> None:
    cleaned: list[object] = []

    class State:
        pass

    clean_up = launch._rarely(cleaned.append)
    one, two = State(), State()
    for state in (one, one, two, one):
        clean_up(state)
    clock.now += launch.LOOK
    clean_up(one)
    assert cleaned == [one, two, one]


def test_all_traffic_is_stored_by_the_end_of_a_task(clock: Any) -> None:
    stored: list[tuple[object, ...]] = []

    class State:
        def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
            stored.append((run_id, bytes_sent, bytes_recv))

        def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
            stored.append(("finished", task_id))
            return True

    launch._Traffic(State)
    state = State()
    for _ in range(3):
        state.store_traffic(1, bytes_sent=10, bytes_recv=0)
    state.store_traffic(2, bytes_sent=0, bytes_recv=5)
    assert stored == []
    clock.now += launch.LOOK
    state.store_traffic(1, bytes_sent=0, bytes_recv=1)
    assert stored == [(1, 30, 1), (2, 0, 5)]
    state.store_traffic(1, bytes_sent=7, bytes_recv=0)
    assert state.finish_task(3, "completed", details="")
    assert stored[2:] == [(1, 7, 0), ("finished", 3)]


# --- a SuperNode's sleep --------------------------------------------------------------------------------


class NodeState:
    def store_message(self, message: Any) -> str:
        return "id"

    def store_object(self, *arguments: Any) -> bool:
        return True


def test_a_supernode_pauses_longer_the_longer_nothing_has_come_and_not_after_a_held_request(
    clock: Any,
) -> None:
    state = NodeState()
    node = launch._Node(state)
    for seconds in (0.0, 0.2, 0.9, 0.9):
        clock.now += seconds
        node.sleep(3)
    assert clock.slept == [launch.FIRST_PAUSE] * 4
    for _ in range(30):
        clock.now += 0.9
        node.sleep(3)
    assert clock.slept[-1] == launch.LONGEST_PAUSE
    assert clock.slept == sorted(clock.slept)
    pauses = len(clock.slept)
    clock.now += launch.HOLD
    node.sleep(3)
    assert len(clock.slept) == pauses  # the SuperLink held the request: that was the pause
    state.store_message(SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="")))
    clock.now += 0.1
    node.sleep(3)
    assert clock.slept[-1] == launch.FIRST_PAUSE


def test_a_supernode_that_waits_for_a_reply_wakes_when_there_is_one_or_a_part_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "LOOK", 60.0)
    state = NodeState()
    node = launch._Node(state)
    reply = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="id"))
    for notice in (lambda: state.store_message(reply), lambda: state.store_object(1, "", "id", b"")):
        timer = threading.Timer(0.1, notice)
        began = time.monotonic()
        timer.start()
        node.sleep(30)
        assert time.monotonic() - began < 15
    began = time.monotonic()
    node.sleep(0.2)  # what was noticed before does not wake it again
    assert time.monotonic() - began >= 0.2


# --- federations ----------------------------------------------------------------------------------------


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Callable[..., rounds.Federation]]:
    clusters = []

    def start(programs: Programs, loss: str = "") -> rounds.Federation:
        """Run the app that does nothing, or this when it is asked for its loss."""
        app = tmp_path / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(rounds.PYPROJECT)
        source = Path(noop.__file__).read_text()
        assert '"""Report a loss."""' in source
        (app / "noop.py").write_text(source.replace('"""Report a loss."""', loss or "pass"))
        cluster = LocalCluster(tmp_path / "run", 2, app=app, programs=programs)
        clusters.append(cluster.__enter__())
        return rounds.Federation(cluster, per_round=2)

    yield start
    for cluster in clusters:
        cluster.close()


@pytest.mark.network
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_rounds_go_on_when_what_forks_the_apps_is_killed(
    federation: Callable[..., rounds.Federation], tmp_path: Path
) -> None:
    running = federation("fast")
    running.turn(1, poll=False)
    supernodes = [process.pid for process in running.cluster.client_processes]
    servers = [pid for root in supernodes for pid in tree(root) if pid != root]
    assert len(servers) == 2
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    for _ in range(2):  # the ordinary program for now, then a new server
        running.turn(1, poll=True)
    log = (running.cluster.logs / "client-00.log").read_text()
    assert log.count("The process that forks flwr-clientapp is gone") == 1
    assert [process.returncode for process in running.cluster.client_processes] == [None, None]
    running.turn(1, poll=False, last=True)
    running.cluster.kill_client(0)
    gone = {supernodes[0], *servers}
    assert wait_until(lambda: not gone & set(processes_with(MARK, str(tmp_path / "run"))), 5)
    assert len(tree(supernodes[1])) == 2  # the SuperNode and its new server


@pytest.mark.network
@pytest.mark.parametrize("programs", ["forked", "fast"])
def test_a_round_does_not_wait_for_a_client_app_that_was_killed(
    federation: Callable[..., rounds.Federation], programs: Programs
) -> None:
    running = federation(programs, loss="import os; os.kill(os.getpid(), 9)")
    running.turn(1, poll=False)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"2 replies wanted(.|\n)*ClientApp stopped responding"):
        running.turn(1, poll=True)
    assert time.monotonic() - began < 40  # Flower misses its heartbeats after 58 s


@pytest.mark.network
def test_an_ordinary_federation_runs_the_same_app(
    federation: Callable[..., rounds.Federation],
) -> None:
    running = federation("stock")
    assert running.turn(1, poll=True, last=True)[0] > 0
    assert running.cluster.server_process is None


@pytest.mark.network
@pytest.mark.slow
def test_the_benchmark_prints_medians_of_both_engines_and_leaves_nothing() -> None:
    before = set(Path("/tmp").glob("cohort-rounds-*"))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "rounds", "--json", "--nodes", "2", "--rounds", "1"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        check=True,
    )
    medians = json.loads(done.stdout)
    assert {name: set(kinds) for name, kinds in medians.items()} == {
        "stock": {"train", "poll"},
        "cohort": {"train", "poll"},
    }
    assert medians["cohort"]["train"] < medians["stock"]["train"]
    assert medians["cohort"]["poll"] < medians["stock"]["poll"]
    assert set(Path("/tmp").glob("cohort-rounds-*")) == before
