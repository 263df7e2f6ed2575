"""A SuperLink accesses its database less often."""

from typing import Any

from flwr.common import constant

from deploy.flower.patches import shared, superlink


def test_results_are_cached_for_a_second_and_the_excluded_result_never(clock: Any) -> None:
    asked = []

    def find(owner: str, key: str) -> str | None:
        asked.append(key)
        return None if key == "unknown" else f"{owner}'s {key}"

    remembered = shared.remembered(find, by=1, but=None)
    assert [remembered("a", "key") for _ in range(3)] == ["a's key"] * 3
    assert [remembered("a", "unknown") for _ in range(3)] == [None] * 3
    assert asked == ["key", "unknown", "unknown", "unknown"]
    clock.now += shared.LOOK
    assert remembered("a", "key") == "a's key"
    assert asked[4:] == ["key"]


def test_the_number_of_cached_results_is_limited(clock: Any) -> None:
    asked = []
    remembered = shared.remembered(asked.append)
    for number in range(shared.MOST_CACHED + 10):  # as a client that asks about runs that do not exist
        remembered(number)
    (known,) = [each.cell_contents for each in remembered.__closure__ if isinstance(each.cell_contents, dict)]
    assert len(known) == 10


def test_each_state_is_cleaned_up_once_a_second(clock: Any) -> None:
    cleaned: list[object] = []

    class State:
        pass

    clean_up = superlink._rarely(cleaned.append)
    one, two = State(), State()
    for state in (one, one, two, one):
        clean_up(state)
    clock.now += superlink.LOOK
    clean_up(one)
    assert cleaned == [one, two, one]


def test_a_serverapp_whose_heartbeats_fail_while_the_database_is_locked_does_not_count_as_dead() -> None:
    interval = constant.HEARTBEAT_DEFAULT_INTERVAL
    share = constant.HEARTBEAT_BASE_MULTIPLIER + max(constant.HEARTBEAT_RANDOM_RANGE)
    between = (interval - constant.HEARTBEAT_CALL_TIMEOUT) * share
    longest_retry = 20.0  # s, of Flower's `HeartbeatSender`
    assert between + shared.FAILING + longest_retry < superlink.MISSED_HEARTBEATS * interval


def test_all_traffic_is_stored_when_a_task_ends(clock: Any) -> None:
    stored: list[tuple[object, ...]] = []

    class State:
        def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
            stored.append((run_id, bytes_sent, bytes_recv))

        def add_clientapp_runtime(self, run_id: int, runtime: float) -> None:
            stored.append((run_id, runtime))

        def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
            stored.append(("finished", task_id))
            return True

    superlink._Traffic(State)
    state = State()
    for _ in range(3):
        state.store_traffic(1, bytes_sent=10, bytes_recv=0)
    state.store_traffic(2, bytes_sent=0, bytes_recv=5)
    assert stored == []
    clock.now += superlink.LOOK
    state.store_traffic(1, bytes_sent=0, bytes_recv=1)
    assert stored == [(1, 30, 1), (2, 0, 5)]
    state.store_traffic(1, bytes_sent=7, bytes_recv=0)
    for run in (1, 4, 1):
        state.add_clientapp_runtime(run, 0.5)
    assert state.finish_task(3, "completed", details="")
    assert stored[2:] == [(1, 7, 0), (1, 1.0), (4, 0.5), ("finished", 3)]
