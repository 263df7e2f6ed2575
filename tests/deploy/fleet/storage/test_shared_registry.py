"""Invitations of a server with several front ends: each works at any of them, and once."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from flwr.common.constant import NOOP_FLWR_AID

from deploy.fleet.duties.duties import Duties
from deploy.fleet.duties.enrolment import Enrolment
from deploy.fleet.storage import postgres as addresses
from deploy.fleet.storage.shared_registry import SharedRegistry, connected
from deploy.flower.registered_clients import DAY, RegistrationRefused, Registry
from deploy.hosting.server import Server
from deploy.processes.groups import wait_until
from deploy.tls import certificates
from tests.support.devices import public_key_of
from tests.support.postgres import shared

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:alembic")


class Front:
    """A front end with a folder, and what its Fleet API does with invitations."""

    def __init__(self, folder, url):
        self.url, self.folder = url, folder
        self.duties = Duties()
        self.state = shared(url, self.duties, folder.name)
        self.duties.presence.begin(self.state)
        self.registry = SharedRegistry(folder, self.state.rows, self.state.alone)
        self.registry.prepare()
        self.register = Enrolment(self.registry, SimpleNamespace(state=lambda: self.state))._register
        self.state.front_end.registry = self.registry

    def accept(self, token, key):
        self.registry.refresh()
        assert self.registry.knows(token)
        return self.registry.accept(token, key, self.register)

    @property
    def operator(self):
        """What `cohort server` uses in another process."""
        return connected(self.folder, self.url)

    def names(self):
        return sorted(each.name for each in self.state.get_node_info())


@pytest.fixture
def fronts(tmp_path, postgres):
    url = postgres.database()
    made = [Front(tmp_path / name, url) for name in ("one", "two")]
    yield made
    for each in made:
        each.state.front_end.stop()
        for store in (each.state, each.state.objects):
            store._engine.dispose()


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return [public_key_of(certificates.write_client_key(folder, name)) for name in "abc"]


def test_an_invitation_of_one_front_end_registers_one_key_at_any(fronts, keys):
    one, two = fronts
    token = one.operator.invite("pi-1", 60)
    assert one.operator.taken("pi-1") == two.operator.taken("pi-1") == "invited already"
    assert two.operator.invited() == {"pi-1": pytest.approx(time.time() + 60, abs=30)}
    for each in (two, two, one):  # the device missed two answers
        assert each.accept(token, keys[0]) == "pi-1"
    for each in fronts:
        with pytest.raises(RegistrationRefused, match="another device has used the invitation"):
            each.accept(token, keys[1])
        assert each.names() == ["pi-1"]
        assert each.operator.taken("pi-1") == "registered already"
    assert one.operator.invited() == {}
    node = str(one.state.get_node_info()[0].node_id)
    assert one.operator.names() == {node: "pi-1"}
    assert one.registry.clients() == two.registry.clients() == {"pi-1": node}


def test_devices_at_two_front_ends_cannot_share_an_invitation(fronts, keys):
    token = fronts[0].operator.invite("pi-1", 60)
    together = threading.Barrier(2)

    def join(front, key):
        together.wait(20)
        try:
            front.accept(token, key)
        except RegistrationRefused:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(join, fronts, keys)) == [False, True]
    assert fronts[0].names() == ["pi-1"]


def test_two_invitations_for_one_name_register_one_client(fronts, keys):
    one, two = fronts
    tokens = [each.operator.invite("pi-1", 60) for each in fronts]  # at the same time
    one.accept(tokens[0], keys[0])
    with pytest.raises(RegistrationRefused, match="pi-1 is registered already"):
        two.accept(tokens[1], keys[1])
    one.state.delete_node(NOOP_FLWR_AID, one.state.get_node_info()[0].node_id)
    assert two.operator.taken("pi-1") == "invited already"


def test_an_invitation_that_has_expired_or_was_withdrawn_is_not_accepted(fronts, keys):
    one, two = fronts
    late, gone = one.operator.invite("late", -1), one.operator.invite("gone", 60)
    two.registry.refresh()
    assert not two.registry.knows(late)
    assert two.registry.knows(gone)
    assert one.operator.withdraw("gone")
    assert not two.operator.withdraw("gone")
    for token, reason in ((late, "has expired"), (gone, "was withdrawn, or is another server's")):
        with pytest.raises(RegistrationRefused, match=reason):
            two.registry.accept(token, keys[0], two.register)
    two.registry.refresh()
    assert not two.registry.knows(gone)
    assert one.names() == []


def test_a_use_that_registers_no_key_uses_nothing_up(fronts, keys):
    one, two = fronts
    token = one.operator.invite("pi-1", 60)

    def fails(name, key):
        raise RegistrationRefused("no")

    with pytest.raises(RegistrationRefused, match="no"):
        one.registry.accept(token, keys[0], fails)
    assert two.accept(token, keys[1]) == "pi-1"


def test_a_used_invitation_can_be_shown_again_for_a_day(fronts, keys):
    one, two = fronts
    token = one.operator.invite("pi-1", 60)
    one.accept(token, keys[0])
    one.state.rows("UPDATE cohort_invitation SET expires = 0, used = used - ?", (DAY - 60,))
    assert two.accept(token, keys[0]) == "pi-1"
    one.state.rows("UPDATE cohort_invitation SET used = used - 120")
    two.registry.refresh()
    assert not two.registry.knows(token)


def test_front_ends_hear_of_invitations_and_revoked_clients_at_once(fronts, keys):
    one, two = fronts
    for each in fronts:
        each.state.front_end.start(each.state, each.duties)
        rows = each.state.rows
        assert wait_until(lambda rows=rows: rows("SELECT * FROM cohort_front_end"), 20)
    token = one.operator.invite("pi-1", 60)
    assert wait_until(lambda: two.registry.knows(token), 20)
    stranger = "x" * 43
    asked = []
    two.registry._rows = asked.append
    assert not two.registry.knows(stranger)  # without the database
    assert asked == []
    two.registry._rows = two.state.rows
    two.accept(token, keys[0])
    assert two.registry.client("pi-1").exists()
    one.state.delete_node(NOOP_FLWR_AID, two.state.get_node_info()[0].node_id)
    assert wait_until(lambda: not two.registry.client("pi-1").exists(), 20)


def test_invitations_of_before_stay_valid_at_their_front_end(fronts, keys):
    one, two = fronts
    before = Registry(one.folder)  # with SQLite
    token = before.invite("pi-1", 60)
    assert one.operator.taken("pi-1") == "invited already"
    assert not two.registry.knows(token)
    assert one.accept(token, keys[0]) == "pi-1"
    assert two.operator.taken("pi-1") == "registered already"
    before.invite("pi-2", 60)
    assert one.operator.withdraw("pi-2")
    assert one.operator.invited() == {}


def test_an_invitation_holds_the_addresses_of_all_front_ends(fronts, tmp_path):
    from deploy.device.invitation import Invitation

    one, two = fronts
    two.state.front_end.address = "two.example.org:9092"
    two.state.front_end.start(two.state, two.duties)
    assert wait_until(lambda: one.operator.addresses() == ["two.example.org:9092"], 20)
    server = Server(tmp_path / "server", ("one.example.org",), database=one.url)
    server.save()
    server.invite("pi-1", tmp_path / "x", 1.0, "")
    offer = Invitation.read(tmp_path / "x")
    assert offer.server == "one.example.org:9092,two.example.org:9092"
    two.registry.refresh()
    assert two.registry.knows(offer.token)
    one.state.rows("UPDATE cohort_address SET seen = seen - ?", (8 * DAY,))
    assert server.addresses == ["one.example.org:9092"]  # it has been away for longer than a week


def test_a_database_that_is_gone_is_named_in_one_line(tmp_path, postgres):
    url = postgres.database(empty=True)
    with pytest.raises(
        addresses.DatabaseError, match=r'"cohort_invitation" does not exist.*is the server up'
    ) as no:
        connected(tmp_path, url).invite("pi-1", 60)
    assert "\n" not in str(no.value)
