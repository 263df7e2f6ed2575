"""Whatever clients say, the run goes on: every field of every report and reply, through the real strategy.

A case is one answer of a stranger (`tests.support.strangers`). Most clients are strangers here, so that a run
has many cases. Then the model may be theirs, but it is finite, and nothing raises, grows or reaches the
terminal.
"""

import io
import logging
import random
from contextlib import contextmanager
from importlib.util import find_spec
from typing import cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.logger import FLOWER_LOGGER
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import SelectionStrategy, selectors
from strategies.clients.reports import STATUS
from strategies.options import Buffered, Checkpoints, Deadlines, Faults, Overrides, Polling

from ...support import federations
from ...support.federations import model
from ...support.strangers import CLEAR, CLIPBOARD, EXPLODED, Stranger, honest, pickled
from ...support.toy_grid import ToyGrid

ROUNDS, HONEST, STRANGERS = 4, 6, 40
ONLY_SIMULATED = {"optimal", "delta", "fed-is"}  # they must know updates before they select
EVERY = sorted(set(selectors.available()) - ONLY_SIMULATED)
FEW = ["uniform", "pow-d", "flics", "flics-private", "forecast"]
SHARES = {"flics": "3/1", "naive-group": "3/1", "flics-private": "1/1"}


def options_of(selector):
    options = {}
    if selector in SHARES:
        options["selector_settings"] = {"group_shares": SHARES[selector]}
    if selector == "flics" and find_spec("cvxpy"):  # budgets of what clients report
        options["selector_settings"] |= {"cost_budget": 20.0, "energy_budgets": 20.0}
    if selector == "lipschitz-is":
        options["overrides"] = Overrides(settings={"lipschitz": {"honest-0": 2.0, "honest-1": 3.0}})
    return options


@contextmanager
def logged():
    """Collect what Flower's logger writes."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    level = FLOWER_LOGGER.level
    FLOWER_LOGGER.addHandler(handler)
    FLOWER_LOGGER.setLevel(logging.INFO)  # other tests may have left it higher
    try:
        yield text
    finally:
        FLOWER_LOGGER.setLevel(level)
        FLOWER_LOGGER.removeHandler(handler)


def run(grid, selector, rounds=ROUNDS, folder=None, **options):
    options = {
        "clients_per_round": HONEST, "min_available_clients": options.get("clients_per_round", HONEST),
        "server_strategy": FedAvg(fraction_evaluate=1.0), "polling": Polling(ask_status=True, interval=0.5),
        "deadlines": Deadlines(join=30, absence=30, round=5, status=2, poll=2),
        "checkpoints": Checkpoints(folder) if folder else None, **options_of(selector), **options,
    }  # fmt: skip
    with logged() as text:
        _, records, _, result = federations.play(grid, selector, rounds, model(1, 2), **options)
    return (result.arrays or model(1, 2))["w"].numpy(), records, text.getvalue()


def federation(strangers):
    group = (0, 1)
    return ToyGrid({**{10 + n: honest(n, group[n % 2]) for n in range(HONEST)}, **strangers})


def play(selector, seed, folder=None, **options):
    """Run a federation with strangers, check it, and return the number of their answers."""
    strangers = {100 + n: Stranger(1000 * seed + n) for n in range(STRANGERS)}
    grid = federation(dict(strangers))
    w, records, text = run(grid, selector, folder=folder, **options)
    assert [record.round for record in records] == list(range(1, ROUNDS + 1))
    assert np.isfinite(w).all()
    assert w.dtype == np.float32
    for record in records:
        for reason in [*record.failures.values(), *record.clipped.values()]:
            assert reason.isprintable()
            assert len(reason) <= 300
    said = text.replace("\n", "").replace("\t", "")
    assert said.isprintable(), next(each for each in said if not each.isprintable())
    assert max(map(len, text.splitlines())) < 5000
    assert not EXPLODED
    return sum(stranger.answers for stranger in strangers.values())


@given(st.integers(0, 10**6), st.sampled_from(FEW), st.booleans())
@settings(max_examples=12)
def test_no_answer_of_a_client_ends_the_run(seed, selector, guard):
    assert play(selector, seed, faults=Faults(guard=guard)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("selector", EVERY)
def test_of_a_hundred_thousand_answers_none_ends_the_run(selector, tmp_path):
    seed, cases = 0, 0
    while cases < 100_000 / len(EVERY):
        folder = tmp_path if seed == 0 else None
        cases += play(selector, seed, folder, faults=Faults(guard=bool(seed % 2)))
        seed += 1
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("selector", ["md", "forecast", "oort", "timed-forecast"])
def test_no_answer_of_a_client_ends_a_buffered_run(selector):
    seed, cases = 0, 0
    while cases < 5_000:
        size = 1 + seed % 4
        mode = Buffered(concurrency=size + seed % 5, size=size, max_staleness=seed % 5)
        cases += play(selector, seed, mode=mode, faults=Faults(guard=bool(seed % 2)))
        seed += 1


# --- over the wire -----------------------------------------------------------------------------------------


class WireGrid(ToyGrid):
    """Takes the replies of some nodes apart into Flower's objects, damages these, and inflates them again.

    As Flower's own grid does: an object that cannot be inflated raises, and what was pulled with it is lost.
    """

    def __init__(self, nodes, damage):
        super().__init__(nodes)
        self._damage = damage

    def pull_messages(self, message_ids):
        found = []
        for reply in super().pull_messages(message_ids):
            answered = reply.metadata.reply_to_message_id
            self._expired.add(answered)  # it is not there a second time
            if reply.metadata.src_node_id >= 100 and not reply.has_error():
                objects = {key: each.deflate() for key, each in get_all_nested_objects(reply).items()}
                damaged = {key: self._damage(key, content) for key, content in objects.items()}
                reply = cast("Message", inflate_object_from_contents(reply.object_id, damaged))
                reply.metadata.__dict__["_message_id"] = "x"  # as the grid does: raises if it is no message
            found.append(reply)
        self._expired -= {reply.metadata.reply_to_message_id for reply in found}
        return found


def damages(r):
    """Return damage to an object: the bytes, the type, the children or the description."""

    types = [b"Message", b"ArrayRecord", b"ArrayChunk", b"Bomb"]

    def damage(key, content):
        if r.random() < 0.6:
            return content
        head, divider, body = content.partition(b"\x00")
        changed = bytearray(body)
        if changed:
            changed[r.randrange(len(changed))] ^= 1 << r.randrange(8)
        kind, *rest = head.split(b" ")
        return r.choice(
            [
                head + divider + bytes(changed),
                head + divider + body[: r.randrange(len(body) + 1)],
                head + divider + b"[" * 5000,
                head + divider + b'{"dtype": 1, "shape": ["a"], "stype": null, "arraychunk_ids": [0]}',
                head + divider + b'{"dtype": "", "shape": [], "stype": "", "arraychunk_ids": [9, -9]}',
                b" ".join([r.choice(types), *rest]) + divider + body,
                b" ".join([kind, b"0" * 64, b"9"]) + divider + body,
                head,
                b"",
                r.randbytes(30),
            ]
        )

    return damage


@given(st.integers(0, 10**6), st.sampled_from(FEW))
@settings(max_examples=10)
def test_objects_that_flower_cannot_inflate_do_not_end_the_run(seed, selector):
    damage = damages(random.Random(seed))
    strangers = {100 + n: honest(HONEST + n, n % 2) for n in range(4)}
    w, records, text = run(WireGrid(federation(strangers).nodes, damage), selector)
    assert len(records) == ROUNDS
    assert np.isfinite(w).all()
    assert text.replace("\n", "").replace("\t", "").isprintable()


def test_an_unreadable_reply_costs_the_others_once_at_most():
    kinds = []

    def node(message):
        kinds.append(message.metadata.message_type)
        return honest(HONEST)(message)

    grid = WireGrid(
        federation({100: node}).nodes, lambda key, content: b"junk" if kinds[-1] == "train" else content
    )
    _, records, text = run(grid, "full", clients_per_round=7, rounds=6)
    assert "Replies could not be read: ValueError" in text
    usable = [int(record.feedback.responded.sum()) for record in records]
    assert usable[0] == 0
    assert usable[1:] == [HONEST] * 5


# --- single attacks ----------------------------------------------------------------------------------------


def test_a_client_of_a_group_without_a_share_is_refused():
    """It ended the run: "groups holds 2: group_shares has numbers for 0 to 1"."""
    strangers = {100: honest(6, "nobody's"), 101: honest(7, None), 102: honest(8, 2), 99: honest(9, "1")}
    grid = federation(strangers)
    _, records, text = run(grid, "flics", clients_per_round=4)
    assert len(records) == ROUNDS
    assert "honest-6 is refused: its group is \"nobody's\": must be one of '0', '1'" in text
    assert "honest-7 is refused: its group is None" in text
    assert {record.num_available for record in records} == {HONEST + 1}
    # One that comes later is refused, too, and each is asked once.
    assert sum(message.metadata.message_type == STATUS for message in grid.sent) == HONEST + 4


@pytest.mark.parametrize(
    "settings", [{"group_shares": "north:9/south:1"}, {"energy_budgets": {"north": 9, "south": 1}}]
)
def test_a_group_does_not_take_the_number_of_another(settings):
    """Groups were numbered in the order of their first client: a newcomer could take the largest share."""
    grid = ToyGrid({100: honest(0, "aaa"), **{n: honest(n, ["north", "south"][n % 2]) for n in range(1, 7)}})
    strategy = SelectionStrategy(
        "flics",
        clients_per_round=3,
        min_available_clients=6,
        selector_settings=settings,
        overrides=Overrides(settings={"groups": {"honest-2": "south"}}),
    )
    list(strategy.configure_train(1, ArrayRecord({"w": Array(np.zeros(2))}), ConfigRecord(), grid))
    assert strategy.roster.ids() == [f"honest-{n}" for n in range(1, 7)]
    assert strategy.selector.state_dict()["groups"].tolist() == [1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("selector", ["flics", "naive-group"])
def test_shares_belong_to_the_groups_that_they_name(selector):
    """Group 2 came first, and took part in place of group 0."""
    each = (2, 2, 1, 1, 0, 0)
    nodes = {10 + n: honest(n, group) for n, group in enumerate(each)}
    by_name = {2: 0.01, 1: 0.01, 0: 0.98, "nobody's": 1e-9}
    for shares in ({"group_shares": ".98/.01/.01"}, {"group_shares": by_name}):
        _, records, _ = run(ToyGrid(nodes), selector, 20, clients_per_round=2, selector_settings=shares)
        trained = np.concatenate([record.selection.clients for record in records])
        assert np.bincount(np.array(each)[trained], minlength=3)[0] >= 0.9 * trained.size
    if selector == "flics":
        minimum = {"min_shares": "0:0.9"}
        _, records, _ = run(ToyGrid(nodes), selector, 20, clients_per_round=2, selector_settings=minimum)
        trained = np.concatenate([record.selection.clients for record in records])
        assert (trained >= 4).mean() > 0.8


def trains(metrics, arrays=None):
    """A client that behaves until it trains."""
    before = honest(9, 1)

    def node(message):
        reply = before(message)
        assert isinstance(reply, Message)
        if message.metadata.message_type == "train":
            content = reply.content
            content["more"] = MetricRecord(metrics)
            if arrays is not None:
                content["arrays"] = arrays(message.content.array_records["arrays"]["w"].numpy())
        return reply

    return node


def test_a_million_metrics_are_neither_averaged_nor_kept(tmp_path):
    """A million floats made every later checkpoint 13 MB larger."""
    node = trains({"a": [0.5] * 1_000_000})
    _, records, text = run(ToyGrid({100: node}), "full", folder=tmp_path, clients_per_round=1)
    assert all(record.feedback.responded.all() for record in records)
    assert "Left out of the metrics of round 1: honest-9 (over 1000 numbers)" in text
    assert len(text) < 20_000
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 600_000


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({f"m{n}": 0.5 for n in range(101)}, "over 100 metrics"),
        ({"a": [0.5] * 1001}, "over 1000 numbers"),
        ({"x" * 129: 1.0}, f"the name {'x' * 39}… is not printable, or over 128 characters long"),
        ({CLEAR: 1.0}, "the name \\x1b[2J is not printable, or over 128 characters long"),
        ({"a": 10**400}, "a is not finite"),
        ({"a": [1.0, float("nan")]}, "a is not finite"),
        ({"b": 1.0, "a": 1.0}, "missing, added or of another length: a, b"),
    ],
)
def test_metrics_that_nobody_can_use_cost_the_others_nothing(metrics, reason):
    strategy = FedAvg(fraction_evaluate=0.0)
    grid = federation({100: trains(metrics)})
    _, records, text = run(grid, "full", clients_per_round=7, rounds=1, server_strategy=strategy)
    assert records[0].feedback.responded.all()
    assert f"Left out of the metrics of round 1: honest-9 ({reason})" in text
    assert ", loss 3.5, " in text


BAD_ARRAYS = {
    "nan": lambda w: ArrayRecord({"w": Array(w * np.nan)}),
    "shape": lambda w: ArrayRecord({"w": Array(np.zeros(3, np.float32))}),
    "text": lambda w: ArrayRecord({"w": Array(np.array(["a", "b"]))}),
    "pickle": lambda w: ArrayRecord({"w": Array("O", (1,), "numpy.ndarray", pickled())}),
    "stype": lambda w: ArrayRecord({"w": Array("float32", (2,), "pickle", pickled())}),
    "cut": lambda w: ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", Array(w).data[:-3])}),
    "names": lambda w: ArrayRecord({f"{CLEAR}{n}": Array(w) for n in range(300)}),
    "none": lambda w: ArrayRecord({}),
}


@pytest.mark.parametrize(
    ("kind", "selector"), [*((kind, "forecast") for kind in BAD_ARRAYS), ("nan", "uniform"), ("cut", "pow-d")]
)
def test_a_rejected_update_changes_nothing(selector, kind):
    """The model is that of the run in which the client's training fails."""

    def failing(message):
        if message.metadata.message_type == "train":
            raise OSError("no disk")
        return honest(9, 1)(message)

    def model(node):
        w, records, text = run(federation({100: node}), selector, rounds=2, clients_per_round=7)
        assert len(records) == 2
        assert text.replace("\n", "").replace("\t", "").isprintable()
        assert any(record.failures for record in records)
        return w

    assert model(trains({}, BAD_ARRAYS[kind])).tobytes() == model(failing).tobytes()
    assert not EXPLODED


def test_terminal_escapes_reach_neither_the_log_nor_the_records():
    """ESC[2J clears the operator's screen, OSC 52 writes to the clipboard."""

    def failing(message):
        if message.metadata.message_type == STATUS:
            identity = ConfigRecord({"client-id": f"client{CLEAR}", "group": CLIPBOARD})
            return Message(RecordDict({CLEAR: identity}), reply_to=message)
        return Message(Error(2, f"{CLEAR}{CLIPBOARD} \u202eno"), reply_to=message)

    grid = federation({100: failing})
    grid.names[10] = f"registered{CLEAR}"
    for polling in (Polling(ask_status=True), Polling(ask_status=True, poll_with="evaluate")):
        _, _, text = run(federation({100: failing}), "pow-d", polling=polling)
        assert "\\x1b[2J" in text
        assert text.replace("\n", "").replace("\t", "").isprintable()
    _, records, text = run(grid, "uniform", clients_per_round=7)
    (reason,) = {reason for record in records for reason in record.failures.values()}
    assert reason == r"error 2: \x1b[2J\x1b]52;c;cm0gLXJmIH4=\x07 \u202eno"
    assert r"registered\x1b[2J" in text
    assert "node-100" in text
    assert text.replace("\n", "").replace("\t", "").isprintable()
