"""What the page shows equals the history."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.page import views
from deploy.page.database import Node, OpenMessage
from deploy.page.run_sources import NothingThereError, Run, RunSources, read_log
from deploy.page.series import ClientCounts, Series
from deploy.page.trial_numbers import TrialNumbers
from server.history import TOLD_TO_END, VERSION, RunHistory, Tail

from ...support.histories import write_history

MARKUP = "<img src=x onerror=alert(1)>"
SIZES = [10.0, 40.0, 20.0, 30.0, 5.0]
GROUPS = ["a", "b", None, "a", "b"]


def lines_of(rounds, clients=5):
    names = [f"client-{i}" for i in range(clients)]
    head = {"type": "run", "version": VERSION, "selector": "md", "selector_settings": "", "num_rounds": 9}
    sizes, groups = (SIZES * clients)[:clients], (GROUPS * clients)[:clients]
    roster = {"type": "roster", "client_ids": names, "client_groups": groups}
    roster |= {"client_sizes": sizes, "used_sizes": [*sizes], "mean_size": 21.0}
    found = [head, {"type": "round", "round": 0, "test_loss": 2.0, "test_accuracy": 0.1}, roster]
    for number, drawn in enumerate(rounds, start=1):
        selected = sorted(drawn)
        found.append(
            {
                "type": "round",
                "round": number,
                "clients": selected,
                "client_ids": [names[each] for each in selected],
                "counts": [drawn[each][0] for each in selected],
                "responded": [drawn[each][1] for each in selected],
                "probabilities": [0.1 * (each + 1) for each in selected],
                "importance": [1.0 + each for each in selected],
                "reply_seconds": [0.5 + each if drawn[each][1] else None for each in selected],
                "training_seconds": [],
                "batteries": [50.0 + each for each in selected],
                "failures": [
                    {"client": names[each], "reason": MARKUP} for each in selected if not drawn[each][1]
                ],
                "clipped": [{"client": names[0], "reason": "norm"}] if 0 in drawn else [],
                "quarantined": [names[1]],
                "silent": [],
                "absent": [2],
                "num_available": clients - 1,
                "seconds": 2.0,
                "train_loss": 1.0,
                "test_loss": 2.0 / number,
                "test_accuracy": 0.5,
                "group_metrics": {"a": {"loss": 1.0 / number, "accuracy": 0.25}},
            }
        )
    return found


def trial_of(lines):
    trial = TrialNumbers()
    for line in lines:
        trial.take(json.loads(json.dumps(line)))
    assert not [note for note in trial.notes if note["kind"] == "damaged"]
    return trial


drawn_rounds = st.lists(
    st.dictionaries(st.integers(0, 4), st.tuples(st.integers(1, 3), st.booleans())).map(
        lambda drawn: {str(key): value for key, value in drawn.items()}
    ),
    max_size=12,
).map(lambda rounds: [{int(key): value for key, value in drawn.items()} for drawn in rounds])


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(float("nan"))), max_size=200))
def test_a_series_holds_the_mean_and_the_range_of_each_bin(values):
    series = Series(most=16)
    for round, value in enumerate(values):
        series.add(round, value)
    shown = series.shown()
    assert len(shown["mean"]) <= 16
    for at, mean in enumerate(shown["mean"]):
        inside = [v for v in values[at * series.width : (at + 1) * series.width] if v is not None and v == v]
        assert (mean is None) == (not inside)
        if inside:
            assert mean == pytest.approx(np.mean(inside), abs=1e-6)
            if series.width > 1:
                assert (shown["low"][at], shown["high"][at]) == (min(inside), max(inside))


@given(drawn_rounds, st.integers(1, 40))
def test_counts_add_up_to_the_draws(rounds, cells):
    counts = ClientCounts(cells)
    counts.resize(5)
    for number, drawn in enumerate(rounds):
        clients = np.array(sorted(drawn), dtype=np.int64)
        many = np.array([drawn[each][0] for each in sorted(drawn)], dtype=np.int64)
        counts.add(number, clients, many)
    for client in range(5):
        row = counts.counts[client].tolist()
        for column, count in enumerate(row):
            inside = rounds[column * counts.width : (column + 1) * counts.width]
            assert count == sum(drawn[client][0] for drawn in inside if client in drawn)
    rows = counts.binned(np.array([1, 0, 1, 0, 1]), 2)
    assert rows.sum() == sum(count for drawn in rounds for count, _ in drawn.values())


def test_long_runs_take_no_more_memory():
    series, counts = Series(64), ClientCounts(cells=64)
    counts.resize(2)
    for round in range(5000):
        series.add(round, 1.0)
        counts.add(round, np.array([round % 2]), np.array([1]))
    assert len(series) <= 64
    assert counts.columns <= 32
    assert counts.counts.sum() == 5000
    assert counts.width * counts.columns >= 5000


@settings(max_examples=60)
@given(drawn_rounds, st.sampled_from(views.ORDERS))
def test_the_views_equal_the_history(rounds, order):
    trial = trial_of(lines_of(rounds))
    draws = [sum(drawn[client][0] for drawn in rounds if client in drawn) for client in range(5)]
    shown = views.selections(trial, order)
    assert shown["order"] == order
    assert sum(row["draws"] for row in shown["rows"]) == sum(draws)
    assert sum(map(sum, shown["cells"])) == sum(draws)
    assert sum(row["clients"] for row in shown["rows"]) == 5
    assert sum(map(sum, shown["missed"])) == sum(not used for drawn in rounds for _, used in drawn.values())
    table = views.clients_page(trial, None, sort="size", descending=True)["rows"]
    assert [row["name"] for row in table] == ["client-1", "client-3", "client-2", "client-0", "client-4"]
    for row in table:
        client = int(row["name"][-1])
        times = [number for number, drawn in enumerate(rounds, 1) if client in drawn]
        used = [number for number in times if rounds[number - 1][client][1]]
        assert row["drawn"] == draws[client]
        assert (row["selected"], row["used"], row["failed"]) == (
            len(times),
            len(used),
            len(times) - len(used),
        )
        assert row["round"] == (times[-1] if times else None)
        assert row["answered"] == (used[-1] if used else None)
        assert row["battery"] == (50.0 + client if times else None)
        assert row["probability"] == (pytest.approx(0.1 * (client + 1)) if times else None)
        assert row["quarantined"] == (len(rounds) if client == 1 else 0)
        assert row["failure"] == (MARKUP if len(times) > len(used) else "")
    curves = views.curves(trial)
    assert curves["test_loss"]["mean"] == [2.0, *(2.0 / number for number in range(1, len(rounds) + 1))]
    assert curves["test_accuracy"]["mean"] == [0.1, *[0.5] * len(rounds)]
    groups = {each["name"]: each for each in views.groups(trial)["groups"]}
    assert groups["a"]["samples"] == pytest.approx(40 / 105)
    assert groups["b"]["clients"] == 2
    if sum(draws):
        assert groups["a"]["draws"] == pytest.approx((draws[0] + draws[3]) / sum(draws))
    assert groups["a"]["accuracy"] == (0.25 if rounds else None)


def test_only_new_bins_are_sent():
    trial = trial_of(lines_of([{0: (1, True)}] * 5))
    new = views.curves(trial, start=4, width=1)["test_loss"]
    assert (new["start"], new["mean"]) == (4, [0.5, 0.4])
    assert views.curves(trial, start=4, width=2)["test_loss"]["start"] == 0


def test_thousands_of_clients_are_shown_in_few_rows():
    trial = trial_of(lines_of([{0: (1, True), 1999: (2, False)}], clients=2000))
    for order in views.ORDERS:
        shown = views.selections(trial, order)
        assert len(shown["rows"]) <= views.ROWS
        assert sum(row["clients"] for row in shown["rows"]) == 2000
        assert sum(map(sum, shown["cells"])) == 3
    sizes = views.selections(trial, "size")["rows"]
    assert all(above["low"] >= below["high"] for above, below in pairwise(sizes))
    page = views.clients_page(trial, None, find="CLIENT-199", page=99)
    assert page["found"] == 11
    assert page["rows"][0]["name"] == "client-199"


def test_many_groups_share_rows():
    lines = lines_of([{7: (1, True)}], clients=100)
    lines[2]["client_groups"] = [f"g{number}" for number in range(100)]
    shown = views.selections(trial_of(lines), "group")
    assert len(shown["rows"]) == views.ROWS
    assert shown["rows"][-1]["name"] == "61 more"


def test_states_of_devices():
    trial = trial_of(lines_of([{0: (1, True)}]))
    state = {row["name"]: row["state"] for row in views.clients_page(trial, None)["rows"]}
    assert state == {
        "client-0": "available",
        "client-1": "quarantined",
        "client-2": "away",
        "client-3": "available",
        "client-4": "available",
    }
    nodes = {
        "client-0": Node(1, "online", online_until=200.0, left=0.0),
        "client-1": Node(2, "offline", online_until=90.0, left=80.0),
        "client-2": Node(3, "online", online_until=99.0, left=0.0),
        MARKUP: Node(4, "registered", online_until=0.0, left=0.0),
    }
    shown = views.clients_page(trial, nodes, now=100.0)
    found = {row["name"]: (row["state"], row["last_seen"]) for row in shown["rows"]}
    assert found["client-0"] == ("online", 100.0)
    assert found["client-1"] == ("offline", 90.0)
    assert found["client-2"] == ("offline", 99.0)
    assert found["client-3"] == ("available", None)
    assert shown["others"] == [{"name": MARKUP, "state": "offline", "seen": None}]


def test_clients_that_train_after_a_buffered_round():
    lines = lines_of([{0: (1, True)}])
    lines[-1] |= {"in_flight": ["client-3", "client-4"], "staleness": [0]}
    trial = trial_of(lines)
    shown = views.clients_page(trial, None)
    assert [row["name"] for row in shown["rows"] if row["state"] == "training"] == ["client-3", "client-4"]
    assert shown["states"]["training"] == 2
    assert views.timeline(trial, None)["in_flight"] == 2
    trial.take({"type": "end", "rounds": 1, "seconds": 2.0, "reason": ""})
    assert "training" not in views.clients_page(trial, None)["states"]


def test_a_rounds_timeline():
    trial = trial_of(lines_of([{0: (1, True)}, {1: (2, True), 3: (1, False)}]))
    last = views.timeline(trial, None)
    assert (last["first"], last["last"], last["round"], last["selected"], last["used"]) == (1, 2, 2, 2, 1)
    silent, heard = last["clients"]
    assert (silent["client"], silent["reply"], silent["reason"]) == ("client-3", None, MARKUP)
    assert (heard["client"], heard["reply"], heard["draws"], heard["training"]) == ("client-1", 1.5, 2, None)
    assert views.timeline(trial, 1)["round"] == 1
    assert views.timeline(TrialNumbers(), None) == {"first": None, "last": None, "round": None}


def test_a_round_under_way():
    trial = trial_of(lines_of([{0: (1, True)}]))
    messages = [
        OpenMessage("/run", "2", "client-0", 10.0, "replied"),
        OpenMessage("/run", "2", "client-1", 10.0, "asked"),
        OpenMessage("/run", "1", "client-2", 1.0, "working"),
    ]
    now = views.under_way(trial, messages, 12.0)
    assert now is not None
    assert (now["round"], now["phases"]) == (2, {"asked": 1, "working": 0, "replied": 1})
    assert now["clients"][0] == {"client": "client-1", "phase": "asked", "seconds": 2.0}
    assert views.under_way(trial, messages[2:], 12.0) is None  # a late message of a past round


@pytest.mark.parametrize(
    "line",
    [
        {"type": "round", "round": 2},
        {"type": "round", "round": "two"},
        {
            "type": "round",
            "round": 2,
            "clients": [99],
            "counts": [1],
            "responded": [True],
            "client_ids": ["x"],
        },
        {"type": "sizes", "clients": [99], "client_sizes": [1.0]},
        {"type": "round", "round": 2, "clients": [0], "counts": ["one"], "responded": [1]},
        {"type": "a type of the future"},
    ],
)
def test_a_damaged_line_stops_nothing(line):
    trial = trial_of(lines_of([{0: (1, True)}]))
    trial.take(line)
    json.dumps(views.summary(trial, "running"), allow_nan=False)
    json.dumps(views.selections(trial, "size"), allow_nan=False)
    json.dumps(views.clients_page(trial, None), allow_nan=False)


@pytest.mark.parametrize(("reason", "state"), [(TOLD_TO_END, "stopped"), ("ValueError: no", "failed")])
def test_a_run_that_was_stopped_has_not_failed(tmp_path, reason, state):
    history = write_history(tmp_path / "md", [2.0, 1.0], "md", end=False)
    with history.path.open("a") as file:
        file.write(json.dumps({"type": "error", "reason": reason}) + "\n")
    run = Run(tmp_path)
    run.read()
    assert run.state("md") == state


def test_histories_of_earlier_versions_without_the_new_fields(tmp_path):
    write_history(tmp_path / "md", [2.0, 1.0, 0.5], "md")
    run = Run(tmp_path)
    run.read()
    trial = run.trials["md"]
    assert run.state("md") == "finished"
    assert trial.counts["drawn"].tolist() == [4, 0, 0, 2]
    assert views.timeline(trial, None)["clients"][0]["reply"] is None


def test_a_history_is_read_in_portions_and_again_after_a_resume(tmp_path):
    history = write_history(tmp_path / "md", [2.0, *[1.0] * 30], "md", end=False)
    tail, lines, parts = Tail(history.path), [], 0
    while part := tail.read(300):
        assert tail.files == 1
        lines, parts = [*lines, *part], parts + 1
    assert parts > 10
    assert [line["round"] for line in lines if line["type"] == "round"] == list(range(31))
    assert [line for line in lines if line["type"] == "round"] == RunHistory(history.path).read()[1:2] + [
        line for line in RunHistory(history.path).read()[3:] if line["type"] == "round"
    ]
    with history.path.open("a") as file:
        file.write('{"type": "round", "round"')
    assert tail.read(300) == []
    run = Run(tmp_path)
    run.read()
    assert run.trials["md"].round == 30
    version = run.trials["md"].version
    (tmp_path / "new").write_bytes(b"".join(history.path.read_bytes().splitlines(keepends=True)[:10]))
    (tmp_path / "new").replace(history.path)
    run.read()
    assert run.trials["md"].round == 7
    assert run.trials["md"].version > 0
    assert run.trials["md"].version != version


def test_what_a_path_leads_to(tmp_path):
    write_history(tmp_path / "up" / "md", [2.0, 1.0], "md", started="1")
    write_history(tmp_path / "up" / "uniform", [2.0, 1.0], "uniform", started="2")
    for path in ("up", "up/md", "up/md/history.jsonl"):
        sources = RunSources(tmp_path / path)
        run = sources.run(None)
        assert run is not None
        assert list(run.trials) == (["md", "uniform"] if path == "up" else ["md"])
    (tmp_path / "up" / "run.json").write_text("{}")
    assert RunSources(tmp_path).runs() == ["up"]
    with pytest.raises(NothingThereError, match="holds no history"):
        RunSources(tmp_path / "up" / "logs")
    assert RunSources(tmp_path / "nowhere", wait=True).run(None) is None


def test_the_runs_of_a_server(tmp_path):
    (tmp_path / "server.json").write_text("{}")
    sources = RunSources(tmp_path)
    assert sources.run(None) is None
    for name in ("2026-01-01", "2026-01-02", "2026-01-03"):
        write_history(tmp_path / "runs" / name, [2.0, 1.0], "md")
    assert sources.runs() == ["2026-01-03", "2026-01-02", "2026-01-01"]
    for asked, given_run in ((None, "2026-01-03"), ("2026-01-01", "2026-01-01"), ("../..", "2026-01-03")):
        run = sources.run(asked)
        assert run is not None
        assert (run.folder.name, list(run.trials)) == (given_run, [given_run])


def test_a_log_is_sent_from_where_the_browser_is(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"one\n\x1b[31mtwo\x1b[0m\x1b]0;evil\x07\nthr")
    start, end, lines = read_log(log, None)
    assert (start, lines) == (0, ["one", "two\\x1b]0;evil\\x07"])
    with log.open("ab") as file:
        file.write(b"ee\n")
    assert read_log(log, end) == (end, log.stat().st_size, ["three"])
    log.write_bytes(b"new\n")  # it was emptied: begins anew
    assert read_log(log, end) == (0, 4, ["new"])
    log.write_bytes(b"x" * 99 + b"\n" + b"y" * 70_000 + b"\nlast\n")
    assert read_log(log, None)[2] == ["last"]
    link = tmp_path / "link.log"
    link.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        read_log(link, None)


def test_a_size_that_is_not_known_leaves_the_other_numbers():
    lines = lines_of([{0: (1, True)}])
    lines[2]["client_sizes"][3] = None
    lines.append({"type": "sizes", "clients": [4], "client_sizes": [None], "used_sizes": [None]})
    trial = trial_of(lines)
    for order in views.ORDERS:
        rows = views.selections(trial, order)["rows"]
        assert sum(row["samples"] for row in rows) == 70


def test_the_sizes_that_the_server_uses_are_shown_beside_the_claims():
    lines = lines_of([{0: (1, True)}])
    lines[2] |= {"client_sizes": [10, 40, 20, None, 1e10], "used_sizes": [10, 30, 20, None, None]}
    lines[2]["mean_size"] = 20
    trial = trial_of(lines)

    def shown():
        rows = views.clients_page(trial, None)["rows"]
        return [(row["size"], row["used_size"]) for row in rows]

    assert shown() == [(10, 10), (40, 30), (20, 20), (0, 20), (1e10, 20)]
    trial.take({"type": "sizes", "clients": [3], "client_sizes": [50], "used_sizes": [44], "mean_size": 26})
    assert shown() == [(10, 10), (40, 30), (20, 20), (50, 44), (1e10, 26)]
