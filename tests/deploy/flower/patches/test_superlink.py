"""A SuperLink accesses its database less often."""

from flwr.common import constant

from deploy.fleet.storage import clock_jumps
from deploy.flower.patches import shared


def test_results_are_cached_for_a_second_and_the_excluded_result_never(clock):
    asked = []

    def find(owner, key):
        asked.append(key)
        return None if key == "unknown" else f"{owner}'s {key}"

    remembered = shared.remembered(find, by=1, but=None)
    assert [remembered("a", "key") for _ in range(3)] == ["a's key"] * 3
    assert [remembered("a", "unknown") for _ in range(3)] == [None] * 3
    assert asked == ["key", "unknown", "unknown", "unknown"]
    clock.now += shared.LOOK
    assert remembered("a", "key") == "a's key"
    assert asked[4:] == ["key"]


def test_the_number_of_cached_results_is_limited(clock):
    asked = []
    remembered = shared.remembered(asked.append)
    for number in range(shared.MOST_CACHED + 10):  # as a client that asks about runs that do not exist
        remembered(number)
    (known,) = [each.cell_contents for each in remembered.__closure__ if isinstance(each.cell_contents, dict)]
    assert len(known) == 10


def test_a_serverapp_whose_heartbeats_fail_while_the_database_is_locked_does_not_count_as_dead():
    interval = constant.HEARTBEAT_DEFAULT_INTERVAL
    share = constant.HEARTBEAT_BASE_MULTIPLIER + max(constant.HEARTBEAT_RANDOM_RANGE)
    between = (interval - constant.HEARTBEAT_CALL_TIMEOUT) * share
    longest_retry = 20.0  # s, of Flower's `HeartbeatSender`
    assert between + shared.FAILING + longest_retry < clock_jumps.MISSED_HEARTBEATS * interval
