import json

import numpy as np

from strategies.clients.printable import LONGEST_NAME, listed
from strategies.clients.reports import Report
from strategies.clients.roster import Roster


def test_clients_are_numbered_by_identity_not_by_arrival():
    one, other = Roster(), Roster()
    one.register({"b": 7, "a": 9, "c": 3})
    other.register({"c": 30, "a": 10, "b": 20})
    assert one.ids() == other.ids() == ["a", "b", "c"]
    assert [one.node_of(i) for i in range(3)] == [9, 7, 3]


def test_late_clients_get_the_next_indexes():
    roster = Roster()
    assert roster.register({"m": 1}) == [0]
    assert roster.register({"a": 2, "m": 1}) == [1]
    assert roster.ids() == ["m", "a"]
    assert len(roster) == 2


def test_a_client_that_comes_back_through_another_node_keeps_its_index():
    roster = Roster()
    roster.register({"a": 1, "b": 2})
    assert roster.register({"a": 5}) == []
    assert roster.node_of(0) == 5
    assert roster.client_at(5) == 0
    assert roster.client_at(1) is None
    assert roster.available([1, 2, 5]).tolist() == [0, 1]


def test_available_clients_are_online_and_have_not_declined():
    roster = Roster()
    roster.register({"a": 1, "b": 2, "c": 3})
    roster.note(1, Report(available=False))
    assert roster.available([3, 2, 1, 99]).tolist() == [0, 2]
    assert not roster.is_available(1)
    roster.note(1, Report())
    assert roster.available([2]).tolist() == [1]


def test_the_last_reported_size_counts():
    roster = Roster()
    roster.register({"a": 1, "b": 2, "c": 3})
    roster.note(0, Report(num_examples=10))
    roster.note(2, Report(num_examples=30))
    roster.note(0, Report())  # says nothing new
    np.testing.assert_array_equal(roster.sizes(), [10, np.nan, 30])


def test_an_unchanged_report_is_not_counted_as_a_change():
    roster = Roster()
    roster.register({"a": 1, "b": 2})
    roster.note(0, Report(num_examples=10))
    before = roster.changes
    roster.note(0, Report(num_examples=10, available=False))
    roster.note(1, Report(group="north"))
    roster.register({"a": 5})
    assert roster.changes == before
    roster.note(1, Report(num_examples=10))
    assert roster.changes > before
    before = roster.changes
    roster.register({"c": 3})
    assert roster.changes > before


def test_the_first_reported_group_counts():
    roster = Roster()
    roster.register({"a": 1, "b": 2})
    roster.note(0, Report(group=3))
    roster.note(0, Report(group="4"))
    roster.note(1, Report())
    roster.note(1, Report(group="late"))  # others have been numbered meanwhile
    assert [roster.group_of(0), roster.group_of(1)] == ["3", None]


def test_a_state_brings_everything_back():
    roster, again = Roster(), Roster()
    roster.register({"a": 1, "b": 2, "c": 3})
    roster.note(1, Report(num_examples=7, group="north", cost=2.0, available=False))
    again.load(json.loads(json.dumps(roster.state())))
    assert again.ids() == roster.ids()
    np.testing.assert_array_equal(again.sizes(), roster.sizes())
    assert again.group_of(1) == "north"
    np.testing.assert_array_equal(again.costs(), [np.nan, 2.0, np.nan])
    np.testing.assert_array_equal(again.energies(), [np.nan] * 3)
    assert again.available([1, 2, 3]).tolist() == [0, 2]  # b has not said that it is available
    assert again.register({"c": 30, "b": 20, "d": 40}) == [3]  # through other nodes
    assert again.available([1, 30, 20, 40]).tolist() == [0, 2, 3]


def test_a_removed_client_is_gone_for_good_and_its_index_is_not_given_again():
    roster = Roster()
    roster.register({"a": 1, "b": 2, "c": 3})
    before = roster.changes
    assert roster.remove(["b", "nobody"]) == ["b"]
    assert roster.remove(["b"]) == []
    assert roster.changes == before + 1
    assert roster.removed() == [1]
    assert roster.available([1, 2, 3]).tolist() == [0, 2]
    assert roster.client_at(2) is None
    assert roster.node_of_id("b") is None
    again = Roster()
    again.load(json.loads(json.dumps(roster.state())))
    assert again.removed() == [1]
    assert again.register({"b": 2}) == [3]  # a client that is registered once more
    assert again.ids() == ["a", "b", "c", "b"]
    assert again.available([1, 2, 3]).tolist() == [0, 2, 3]


def test_a_line_of_the_log_names_a_few_clients():
    assert listed([]) == ""
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"c{number}" for number in range(5)], 3) == "c0, c1, c2 and 2 more"
    assert len(listed(["x" * LONGEST_NAME] * 100_000)) < 3000


def test_nodes_without_an_available_client_are_listed_in_their_order():
    roster = Roster()
    roster.register({"a": 11, "b": 12, "c": 13})
    assert roster.without_available([13, 9, 11, 8]) == [9, 8]
    roster.note(2, Report(available=False))
    assert roster.without_available([13, 9, 11, 8]) == [13, 9, 8]
    assert roster.available([13, 9, 12, 11, 12]).tolist() == [0, 1]
    roster.note(1, Report(group="north"))
    assert roster.groups() == [None, "north", None]
