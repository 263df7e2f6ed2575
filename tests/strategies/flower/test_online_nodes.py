"""What a look at the online nodes reads grows with the new nodes, not with the known ones."""

from hypothesis import given
from hypothesis import strategies as st

from strategies import SelectionStrategy
from strategies.clients.reports import Report
from strategies.clients.saved_roster import SavedRoster
from strategies.flower.attendance import Attendance
from strategies.flower.online_nodes import OnlineNodes
from strategies.options import Deadlines, Polling

from ...support.federations import reply
from ...support.toy_grid import ToyGrid


class NodeInfo:
    """A node in Flower's list; counts how often its name is read."""

    reads = 0

    def __init__(self, node_id, name=""):
        self.node_id, self._name = node_id, name

    @property
    def name(self):
        NodeInfo.reads += 1
        return self._name


class Listed:
    """A grid that lists nodes, and has no messages."""

    def __init__(self, nodes):
        self.nodes = nodes

    def get_nodes(self):
        return [NodeInfo(node, name) for node, name in self.nodes.items()]


def attendance(clients, **options):
    found = Attendance(clients, 1, 1, Deadlines(), Polling(ask_status=False), **options)
    return found, Listed({node: f"client-{node}" for node in range(1, clients + 1)})


def names_read(call, *given):
    NodeInfo.reads = 0
    found = call(*given)
    return NodeInfo.reads, found


@given(
    st.lists(st.integers(1, 20), unique=True, max_size=8),
    st.sets(st.integers(0, 7)),
    st.lists(st.integers(1, 25)),
    st.permutations("abxyz"),
)
def test_the_nodes_are_those_that_a_walk_over_all_finds(known, unavailable, online, late):
    roster = SavedRoster()
    roster.register(dict(zip("abcdefgh", known, strict=False)))
    for client in unavailable & set(range(len(roster))):
        roster.note(client, Report(available=False))
    names = {node: f"name of {node}" if node % 3 else "" for node in online}
    found = OnlineNodes([NodeInfo(node, names[node]) for node in online], roster)
    assert found.without_available() == roster.without_available(names)
    assert dict(found) == names
    assert list(found) == list(names)
    assert len(found) == len(names)
    assert {node for node in range(30) if node in found} == set(names)
    assert found.others == {node: names[node] for node in names if roster.client_at(node) is None}
    assert found.num_known == len(names) - len(found.others)
    assert found.available().tolist() == roster.available(names).tolist()
    roster.register(dict(zip(late, found.others, strict=False)))  # new clients, and some that come back
    assert found.available().tolist() == roster.available(names).tolist()


def test_a_round_reads_the_names_of_new_nodes_only():
    here, grid = attendance(1000)
    here.wait_for_first(grid)
    grid.nodes |= {2000: "", 2001: "late"}
    reads, available = names_read(here.available, grid)
    assert reads <= 2 * 2
    assert available.size == 1002
    for gone in range(1, 501):
        del grid.nodes[gone]
    reads, available = names_read(here.available, grid)
    assert (reads, available.size) == (0, 502)


def test_a_round_with_unavailable_clients_reads_no_name_of_the_known_ones():
    here, grid = attendance(1000)
    here.wait_for_first(grid)
    for client in range(0, 1000, 2):
        here.roster.note(client, Report(available=False))
    reads, available = names_read(here.available, grid)
    assert reads == 0
    assert available.size == 1000  # without questions, each look takes them as available again


def test_a_resumed_run_reads_the_names_of_new_nodes_only():
    before, grid = attendance(1000)
    before.wait_for_first(grid)
    after, _ = attendance(1000)
    after.load(before.state())
    grid.nodes[5000] = "new"
    reads, _ = names_read(after.wait_for_first, grid)
    assert reads <= 2
    assert len(after.roster) == 1001


def test_a_checkpoint_of_the_attendance_holds_what_a_round_has_changed():
    here, grid = attendance(1000)
    here.wait_for_first(grid)
    state = here.state()
    here.settle()
    here.available(grid)
    assert here.changes()["roster"]["changed"] == []
    grid.nodes |= {2000: "", 2001: "late", 2002: "client-7"}  # the last one has come back
    del grid.nodes[7]
    here.available(grid)
    here.hear(3, Report(num_examples=5))
    changes = here.changes()
    assert changes["roster"]["changed"] == sorted({3, here.roster.client_at(2002), 1000, 1001})
    assert changes["roster"]["ids"][-2:] == ["late", "node-2000"]
    assert changes["registered"] == {"came": ["late"], "went": []}
    merged = Attendance.merged(state, changes)
    again, _ = attendance(1000)
    again.load(merged)
    assert again.state() == here.state()


def test_clients_that_were_not_asked_and_are_known_by_now_are_saved_as_such():
    """The node ids of unasked clients are part of the state."""

    def client(message):
        return reply(message, [1.0, 1.0], num_examples=1, client_id=f"c{message.metadata.dst_node_id}")

    def strategy():
        return SelectionStrategy("uniform", clients_per_round=2, min_available_clients=4)

    grid = ToyGrid(dict.fromkeys(range(1, 5), client))
    here = strategy()._parts.attendance
    here.wait_for_first(grid)
    assert here.changes()["unasked"] == {"came": [1, 2, 3, 4], "went": []}
    state = here.state()
    here.settle()
    here.hear(0, Report(client_id="c1"))
    assert here.changes()["unasked"] == {"came": [], "went": [1]}
    again = strategy()._parts.attendance
    again.load(Attendance.merged(state, here.changes()))
    assert again.state() == here.state()
    assert again.roster.ids()[0] == "c1"
