"""What has changed, put on top of what was saved, is the roster of now."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strategies.clients.reports import Report
from strategies.clients.saved_roster import SavedRoster, SavedSet

REPORTS = st.builds(
    Report,
    num_examples=st.sampled_from([None, 10, 2.5]),
    group=st.sampled_from([None, "a", 7]),
    cost=st.sampled_from([None, 1.5]),
    energy=st.sampled_from([None, 3.0]),
    properties=st.sampled_from([None, {}, {"charging": True}]),
    available=st.booleans(),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 99))),
        st.tuples(st.just("remove"), st.sets(st.sampled_from("abcdefgh"), max_size=2)),
        st.tuples(st.just("rename"), st.integers(0, 7)),
        st.tuples(st.just("note"), st.integers(0, 7), REPORTS),
    ),
    max_size=12,
)


def take(roster, step):
    kind, what, *more = step
    if kind == "register":
        roster.register({each: node for each, node in what.items() if f"{each}!" not in roster.ids()})
    elif kind == "remove":
        roster.remove(what)
    elif what < len(roster) and what not in roster.removed():
        if kind == "note":
            roster.note(what, more[0])
        elif not roster.id_of(what).endswith("!"):
            roster.rename(what, f"{roster.id_of(what)}!")


def written(value):
    """Return a value as it is read from a checkpoint."""
    return json.loads(json.dumps(value))


@given(STEPS, STEPS)
def test_the_changes_of_a_roster_lead_to_its_state(before, after):
    roster = SavedRoster()
    for step in before:
        take(roster, step)
    state = written(roster.state())
    roster.settle()
    for step in after:
        take(roster, step)
    merged = SavedRoster.merged(state, written(roster.changed_state()))
    assert written(merged) == written(roster.state())
    again = SavedRoster()
    again.load(merged)
    assert written(again.state()) == written(roster.state())


@given(STEPS, STEPS, st.lists(st.integers(1, 99)), st.integers(0, 1))
def test_the_clients_at_nodes_are_those_of_the_roster(before, after, nodes, copied):
    """At the first look, the index copies the nodes only if there are more than a thousand new ones."""
    roster, ids = SavedRoster(), np.array(nodes, np.uint64)
    if copied:
        roster.register({f"other-{node}": node for node in range(100, 1101)})
    for steps in (before, after, ()):
        for step in steps:
            take(roster, step)
        expected = [-1 if roster.client_at(node) is None else roster.client_at(node) for node in nodes]
        for order in (np.arange(ids.size), np.argsort(ids)):
            assert roster.clients_at(ids[order]).tolist() == [expected[at] for at in order]
    assert bool(copied) == bool(roster._node_index._nodes.size)
    again = SavedRoster()
    again.load(written(roster.state()))
    assert again.clients_at(ids).tolist() == [
        -1 if again.client_at(node) is None else again.client_at(node) for node in nodes
    ]


def test_only_changed_clients_are_saved_again():
    roster = SavedRoster()
    roster.register({f"client-{number:04d}": number + 1 for number in range(1000)})
    for client in range(1000):
        roster.note(client, Report(num_examples=10, group="a"))
    roster.settle()
    for client in range(1000):
        roster.note(client, Report(num_examples=10, group="b"))  # of groups, the first counts
    assert roster.changed_state()["changed"] == []
    roster.note(7, Report(num_examples=11))
    roster.note(5, Report(available=False))
    roster.register({"client-0003": 2000, "new": 2001})
    roster.remove({"client-0009"})
    changed = roster.changed_state()
    assert changed["changed"] == [3, 5, 7, 9, 1000]
    assert changed["ids"] == ["client-0003", "client-0005", "client-0007", "client-0009", "new"]
    assert changed["nodes"] == [(3, 2000), (5, 6), (7, 8), (1000, 2001)]
    assert changed["unavailable"] == [5]
    assert changed["removed"] == [9]
    roster.settle()
    assert roster.changed_state()["changed"] == []


@given(
    st.sets(st.integers(0, 9)),
    st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 9)))),
)
def test_the_changes_of_a_set_lead_to_its_members(members, steps):
    found = SavedSet(members)
    expected = set(members)
    for adds, given_members in steps:
        if adds:
            found.add(given_members)
            expected |= given_members
        else:
            found.discard(given_members)
            expected -= given_members
    assert set(found) == expected
    assert len(found) == len(expected)
    assert SavedSet.merged(sorted(members), written(found.changes())) == sorted(expected)
    found.settle()
    assert found.changes() == {"came": [], "went": []}
