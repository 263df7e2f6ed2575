"""The nemesis's own parts: its schedule is a function of the seed, and its checker misses nothing."""

import itertools
import json
import shutil
import socket
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from safetensors.numpy import load_file, save_file

import server.app
from strategies.rounds import aggregation

from ..server.test_apps import DEFAULTS
from ..support.proxy import Proxy, Trouble
from ..support.toy_grid import ToyGrid, node_of
from . import client_app, nemesis
from .checker import check
from .faults import FAULTS, Fault, episode
from .front_ends import ENGINES, FrontEndsFederation
from .updates import trained
from .watch import Watch

CLIENTS, PER_ROUND, ROUNDS = 4, 3, 8

# --- the schedule --------------------------------------------------------------------------------------


def schedule(seed, engine="server", episodes=200):
    kind = ENGINES[engine]
    return [episode(seed, number, CLIENTS, kind.faults, kind.fronts).line() for number in range(episodes)]


def test_the_schedule_is_a_function_of_the_seed():
    assert schedule(1) == schedule(1)
    assert schedule(1) != schedule(2)
    assert schedule(1, "front-ends") == schedule(1, "front-ends")
    assert schedule(1)[150] == episode(1, 150, CLIENTS, ENGINES["server"].faults).line()


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_schedule_has_every_fault_that_its_engine_can_suffer(engine):
    faults = [fault for line in schedule(3, engine) for fault in line["faults"]]
    drawn = Counter(f"{fault['part']} {fault['fault']}" for fault in faults)
    assert set(drawn) == ENGINES[engine].faults
    assert {fault for each in ENGINES.values() for fault in each.faults} == {
        f"{part} {fault}" for part, fault in FAULTS
    }
    fronts = {fault["front"] for fault in faults if "front" in fault}
    assert fronts == (set(range(ENGINES[engine].fronts)) if ENGINES[engine].fronts > 1 else set())
    assert {fault.get("trouble") for fault in faults} >= {"refuse", "silence", "half-open", "delay"}
    assert all(0 <= fault["start"] <= 3 and fault["seconds"] <= 40 for fault in faults)


def test_slowness_is_the_time_that_computing_takes_beyond_its_processor_time(monkeypatch):
    ticks = itertools.count()
    now = 0.0

    def processor():
        nonlocal now
        now = next(ticks) / 1000
        return now

    clock = SimpleNamespace(thread_time=processor, perf_counter=lambda: 3 * now)
    monkeypatch.setattr(nemesis, "time", clock)
    slowness = nemesis.Slowness()
    assert slowness.factor == 1.0
    slowness.measure()
    assert slowness.factor == pytest.approx(3.0, rel=0.3)


def test_the_longest_gap_counts_the_rounds_between_the_first_fault_and_the_healing():
    completed = [0.0, 9.0, 10.0, 12.5, 13.0, 17.0, 18.0, 40.0]
    assert nemesis.longest_gap(completed, 11.0, 17.5) == 4.0
    assert nemesis.longest_gap(completed, 11.0, 12.0) == 2.5
    assert nemesis.longest_gap([], 11.0, 12.0) == 0.0


def test_a_run_that_ends_as_if_somebody_had_stopped_it_is_a_violation(tmp_path, monkeypatch):
    monkeypatch.setitem(ENGINES, "none", lambda folder, clients: SimpleNamespace(run=folder / "run"))
    given = {"seed": 0, "minutes": 1, "bound": 1, "clients": 1, "per_round": 1, "deadline": 1, "say": print}
    judge = nemesis.Nemesis(tmp_path / "all", engine="none", **given)
    stop = {"faults": [{"part": "serverapp", "fault": "restart"}], "outcome": [{"hit": True}]}
    judge.report.episodes, judge._stops = [stop, stop], 2
    judge._judge(SimpleNamespace(resumes=2, violations=[]))
    assert judge.report.violations == []
    judge._stops = 3
    judge._judge(SimpleNamespace(resumes=3, violations=[]))
    assert judge.report.violations == ["the run was told to end 2 times, and ended 3 times"]


def test_the_faults_of_a_network_cut_off_the_connections_that_they_name():
    federation = object.__new__(FrontEndsFederation)
    federation.num_clients, federation._links = 4, ["link 0", "link 1"]
    federation._paths = [[f"{client} at {front}" for front in (0, 1)] for client in range(4)]

    def cut(**fields):
        return federation.connections(Fault(**{"client": None, "start": 0, "seconds": 1, **fields}))

    assert cut(part="link", fault="partition", front=1) == ["link 1"]
    assert cut(part="network", fault="half", front=0) == ["0 at 0", "2 at 0"]
    assert cut(part="network", fault="half", front=1) == ["1 at 1", "3 at 1"]
    assert cut(part="network", fault="partition", client=2, front=1) == ["2 at 1"]
    assert cut(part="network", fault="partition", client=2) == ["2 at 0", "2 at 1"]
    assert len(cut(part="network", fault="partition")) == 8


# --- the proxy -----------------------------------------------------------------------------------------


@pytest.fixture
def network():
    """A server that notes what it receives and answers it in capitals, behind a proxy."""
    noted = []

    def serve(connection):
        with connection:
            while part := connection.recv(100):
                noted.append(part)
                connection.sendall(part.upper())

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        proxy = Proxy(listener.getsockname()[1])
        yield proxy, noted
        proxy.close()
        listener.shutdown(socket.SHUT_RDWR)


def answer(connection, wait=10.0):
    """Return what arrives: None if nothing does, b"" if the connection has ended or broken."""
    connection.settimeout(wait)
    try:
        return connection.recv(100)
    except TimeoutError:
        return None
    except ConnectionError:
        return b""


def test_the_proxy_is_a_good_network_and_then_each_bad_one(network):
    proxy, noted = network
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.sendall(b"a")
        assert answer(client) == b"A"
        proxy.suffer(Trouble.SILENCE)
        client.sendall(b"b")
        assert answer(client, 0.1) is None
        assert noted == [b"a"]
        proxy.heal()
        assert answer(client) == b"B"  # as after a cable was pulled: TCP sends it again
        proxy.suffer(Trouble.STALE)
        client.sendall(b"b")
        assert answer(client, 0.1) is None
        proxy.heal()
        assert answer(client) == b"B"
        proxy.suffer(Trouble.HALF_OPEN)
        client.sendall(b"c")
        assert answer(client, 0.1) is None
        assert noted == [b"a", b"b", b"b", b"c"]
        proxy.heal()
        assert answer(client) == b"C"
        proxy.suffer(Trouble.DELAY, 0.1)
        began = time.monotonic()
        client.sendall(b"d")
        assert answer(client) == b"D"
        assert time.monotonic() - began >= 0.2
        proxy.suffer(Trouble.REFUSE)
        assert answer(client) == b""
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        assert answer(client) == b""
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.sendall(b"e")
        assert answer(client) == b"E"
        proxy.suffer(Trouble.HALF_OPEN)
        client.sendall(b"f")
        assert answer(client, 0.1) is None
        proxy.heal(reset=True)
        assert answer(client) == b""


# --- the checker ---------------------------------------------------------------------------------------


def federation(folder):
    """Run the nemesis's app in process; one client fails now and then, another leaves."""
    config = {
        **DEFAULTS,
        "selector": "md",
        "num-clients": CLIENTS,
        "clients-per-round": PER_ROUND,
        "num-rounds": ROUNDS,
        "learning-rate": 1.0,
        "output-dir": str(folder / "run"),
    }

    def node(client):
        reply = node_of(client_app.app, {"partition-id": client, "num-partitions": CLIENTS}, config)

        def fails_at_times(message):
            number = int(message.metadata.group_id or 0)
            if client == 1 and number and number % 3 == 0:
                raise OSError("no disk")
            if number == 3:
                grid.nodes.pop(1002, None)
            return reply(message)

        return fails_at_times

    grid = ToyGrid({})
    grid.nodes = {1000 + client: node(client) for client in range(CLIENTS)}
    server.app.app(grid, Context(1, 1, {}, RecordDict(), config))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_app, "STEP_SECONDS", 0.0)
        federation(folder)
    return folder


def judged(folder):
    watch = Watch(folder / "run")
    watch.close()
    verdict = check(
        folder / "run" / "history.jsonl",
        folder / "trainings",
        watch.models,
        clients_per_round=PER_ROUND,
        last=load_file(folder / "run" / "model.safetensors"),
    )
    verdict.violations += watch.violations
    return verdict


def test_an_honest_history_has_no_violation(finished):
    verdict = judged(finished)
    assert verdict.violations == []
    assert verdict.rounds == ROUNDS
    assert verdict.failures > 0
    lines = [json.loads(line) for line in (finished / "run" / "history.jsonl").read_text().splitlines()]
    assert {line.get("num_available") for line in lines if line["type"] == "round"} == {None, 4, 3}
    assert verdict.models == 1 + 3 + 1  # of two clients in round 1, checkpoints, the last model
    assert verdict.largest_error < 1e-6


Lines = list[dict[str, Any]]


def rounds_of(lines):
    return [line for line in lines if line["type"] == "round"]


def drop_a_round(lines):
    lines.remove(rounds_of(lines)[3])


def repeat_a_round(lines):
    lines.insert(lines.index(rounds_of(lines)[3]), rounds_of(lines)[3])


def name_another_client(lines):
    line = next(line for line in rounds_of(lines)[1:] if all(line["responded"]) and len(line["clients"]) < 4)
    free = next(c for c in range(CLIENTS) if f"client-{c:02d}" not in line["client_ids"])
    line["client_ids"][0] = f"client-{free:02d}"


def change_a_weight(lines):
    line = rounds_of(lines)[2]
    line["weights"] = [weight * 1.001 for weight in line["weights"]]


def count_a_client_twice(lines):
    line = rounds_of(lines)[2]
    for key in ("clients", "client_ids", "counts", "weights", "responded", "update_norms"):
        line[key].append(line[key][0])


def forget_a_failure(lines):
    next(line for line in rounds_of(lines)[1:] if line["failures"])["failures"] = []


def leave_out_the_end(lines):
    lines.pop()


def swap_two_rounds_replies(lines):
    one, other = rounds_of(lines)[2], rounds_of(lines)[3]
    one["round"], other["round"] = other["round"], one["round"]
    here, there = lines.index(one), lines.index(other)
    lines[here], lines[there] = lines[there], lines[here]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (drop_a_round, "rounds do not follow one another"),
        (repeat_a_round, "rounds do not follow one another"),
        (name_another_client, "has norm|has not trained|differs from the replay"),
        (change_a_weight, "weights are"),
        (count_a_client_twice, "a client was selected twice"),
        (forget_a_failure, "are missing, recorded are set"),
        (leave_out_the_end, "the last line is not the run's end"),
        (swap_two_rounds_replies, "the update of client"),
    ],
)
def test_a_false_history_is_caught(finished, tmp_path, change, found):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run" / "history.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any(part in violation for violation in judged(tmp_path).violations for part in found.split("|")), (
        judged(tmp_path).violations
    )


def test_a_model_with_a_reply_of_another_round_is_caught(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run" / "model.safetensors"
    model = load_file(path)
    late = trained(0, ROUNDS - 1, model)
    save_file({name: array + (late[name] - array) / PER_ROUND for name, array in model.items()}, path)
    violations = judged(tmp_path).violations
    assert ["model at the end differs" in each for each in violations] == [True], violations


def test_a_reply_without_a_training_is_caught(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    log = tmp_path / "trainings" / "client-02.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]))  # the last training has begun, and not ended
    (violation,) = judged(tmp_path).violations
    assert "client 2 replied, but has not trained this round's model" in violation


def test_a_server_that_adds_a_reply_twice_is_caught(tmp_path, monkeypatch):
    add, calls = aggregation._add, 0

    def adding(total, begin, difference, factor):
        nonlocal calls
        calls += 1
        again = difference.copy()
        add(total, begin, difference, factor)
        if calls == 7:
            add(total, begin, again, factor)

    monkeypatch.setattr(aggregation, "_add", adding)
    monkeypatch.setattr(client_app, "STEP_SECONDS", 0.0)
    federation(tmp_path)
    assert any("differs from the replay" in violation for violation in judged(tmp_path).violations)


def test_a_resume_that_loses_rounds_is_caught(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run" / "history.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    watch = Watch(tmp_path / "run")
    end = time.monotonic() + 20
    while len(watch.rounds) <= ROUNDS and time.monotonic() < end:
        time.sleep(0.01)
    resume = json.dumps({"type": "resume", "round": ROUNDS - 3, "started": "", "num_rounds": ROUNDS})
    new = tmp_path / "new"
    new.write_text("".join([*lines[: 3 + ROUNDS - 3], resume + "\n"]))
    new.replace(path)
    watch.close()
    assert watch.violations == [f"round {ROUNDS} was reached, the run resumed after round {ROUNDS - 3}"]
    assert max(watch.rounds) == ROUNDS - 3
