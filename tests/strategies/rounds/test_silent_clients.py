"""How long a round waits, and whom it does without; hand-computed cases of a few clients."""

from math import inf, nan

import numpy as np
import pytest

from strategies.options import Faults
from strategies.rounds.logic import RoundLogic
from strategies.rounds.waiting.silent_clients import KINDS, Patience
from strategies.selectors import create


def exchange(patience, round, clients, seconds, kind="train", limit=60.0):
    """Play an exchange in which the clients answer after so many seconds; return how long it lasts."""
    wait = patience.wait(kind, round, np.array(clients), limit)
    now = 0.0
    for position in np.argsort(seconds, kind="stable"):
        if not seconds[position] <= wait.end():
            break
        now = seconds[position]
        wait.answered(int(position), now)
    ended = max(now, wait.end())
    wait.close(ended)
    return ended


def test_a_wait_ends_when_nobody_can_be_expected_any_more():
    patience = Patience(6, shortest=1.0)
    # Nobody is known: three times as long as four of five needed, 4 s.
    assert exchange(patience, 1, [0, 1, 2, 3], [2.0, 3.0, 4.0, inf]) == 12.0
    # Clients 0 and 1 are known to need 2 and 3 s; client 3 is in debt, and gets twice the usual time.
    assert exchange(patience, 2, [0, 1], [2.0, inf]) == 9.0
    assert exchange(patience, 9, [0, 3], [2.0, inf]) == 8.0
    # All have answered.
    assert exchange(patience, 10, [0, 2], [2.0, 4.0]) == 4.0


def test_one_instant_answer_does_not_end_the_first_exchange_of_a_run():
    patience = Patience(200, shortest=1.0)
    seconds = [0.01, 0.01, 7.0, 8.0, inf, 30.0]
    assert exchange(patience, 1, list(range(6)), seconds, limit=3600.0) == 3 * 8.0
    # Four times are known. Of 12 clients, the second answer makes them six; most of the 12 are missing.
    twelve = list(range(20, 32))
    assert exchange(patience, 2, twelve, [0.01, 9.0] + [inf] * 10, limit=3600.0) == 6 * 8.0
    # As many times as are remembered are enough for any number of clients.
    patience = Patience(200, shortest=1.0)
    exchange(patience, 1, list(range(64)), [1.0] * 64)
    assert exchange(patience, 2, list(range(200)), [inf] * 200) == 6.0


@pytest.mark.parametrize(
    ("shortest", "limit", "ended"), [(1.0, 60.0, 3.0), (5.0, 60.0, 5.0), (5.0, 2.0, 2.0)]
)
def test_a_wait_is_neither_too_short_nor_longer_than_its_limit(shortest, limit, ended):
    assert exchange(Patience(100, shortest), 1, [0, 1], [1.0, inf], limit=limit) == ended


def test_without_a_shortest_wait_every_wait_lasts_until_its_limit():
    patience = Patience(2, inf, quarantines=False)
    assert exchange(patience, 1, [0, 1], [1.0, inf]) == 60.0
    assert patience.quarantined(2).size == 0


def test_the_wait_doubles_while_most_clients_are_silent():
    patience = Patience(5, shortest=0.1, quarantines=False)
    exchange(patience, 1, [0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0])
    ends = [exchange(patience, round, [0, 1, 2, 3], [inf] * 4) for round in range(2, 6)]
    assert ends == [6.0, 12.0, 24.0, 48.0]
    exchange(patience, 6, [0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0])
    assert exchange(patience, 7, [0, 1, 2, 3], [1.0, 1.0, 1.0, inf]) == 3.0


@pytest.mark.parametrize(
    ("m", "limit", "ended"),
    [(100, inf, 3.0), (20, inf, 5.0), (10, inf, 20.0), (5, inf, 80.0), (5, 60.0, 12.0), (5, 10.0, 3.0)],
)
def test_a_client_of_unknown_speed_gets_more_time_in_a_small_federation(m, limit, ended):
    """At most a fifth of the limit, unless three times the usual time is more. A silent client gets it
    once."""
    patience = Patience(m, shortest=0.1)
    assert exchange(patience, 1, [0, 1, 2, 3], [1.0, 1.0, 1.0, inf], limit=limit) == ended
    assert exchange(patience, 6, [0, 1, 2, 3], [1.0, 1.0, 1.0, inf], limit=limit) == 2.0


def test_a_wait_begins_anew_when_more_of_an_answer_has_arrived():
    patience = Patience(100, shortest=0.1)
    exchange(patience, 1, [0, 1], [1.0, 1.0])
    wait = patience.wait("train", 2, np.array([0, 1]), 60.0)
    wait.answered(0, 1.0)
    assert wait.end() == 3.0
    wait.progress(1, 3.0)
    assert wait.end() == 6.0
    wait.progress(1, 58.0)
    assert wait.end() == 60.0
    wait.close(60.0)
    assert patience.quarantined(3).tolist() == [1]


def test_a_quorum_of_one_does_not_count_on_clients_that_were_silent_lately():
    patience = Patience(100, shortest=0.1)
    exchange(patience, 1, [0, 1], [1.0, inf])
    for client, quorum, is_short in ((2, 1, True), (1, 1, False), (1, 2, False)):
        wait = patience.wait("train", 6, np.array([client]), 60.0, quorum)
        assert wait.is_short(0) is is_short
    both = patience.wait("train", 6, np.array([1, 2]), 60.0, 2)
    assert both.is_short(0)
    assert both.is_short(1)
    assert not both.is_short(2)


def test_errors_are_no_times_and_quarantine_from_the_second_one_on():
    patience, quarantined = Patience(100, shortest=0.1), []
    for round in (1, 2, 20, 100):
        wait = patience.wait("train", round, np.array([0, 1]), 60.0)
        wait.answered(0, 10.0)
        wait.failed(1, 0.01)
        assert wait.end() == 0.0
        wait.close(10.0)
        quarantined.append(sum(1 in patience.quarantined(each) for each in range(round + 1, 300)))
    assert quarantined == [0, 6, 16, 40]
    poll = patience.wait("poll", 200, np.array([0, 1]), 60.0)  # an app may lack the handler
    poll.failed(1, 0.01)
    poll.close(1.0)
    assert patience._debts[1].tolist() == [0, 8, 0]


def test_a_client_that_is_slow_on_purpose_delays_rounds_until_the_deadline_at_most():
    """It answers just in time, each time nearly three times as late."""
    patience = Patience(20, shortest=1.0)
    slow, lasted = 1.0, []
    for round in range(1, 60):
        lasted.append(exchange(patience, round, list(range(5)), [1.0, 1.0, 1.0, 1.0, slow], limit=60.0))
        wait = patience.wait("train", round, np.array([4]), 60.0)
        slow = 0.99 * wait.end()
    assert max(lasted) <= 60.0
    assert lasted[1] <= 3.0
    assert lasted[2] <= 9.0


def test_a_silent_client_is_asked_ever_more_rarely():
    patience = Patience(4, shortest=1.0)
    asked = []
    for round in range(1, 301):
        who = [client for client in range(4) if client not in patience.quarantined(round)]
        asked += [round] if 3 in who else []
        exchange(patience, round, who, [1.0 if client < 3 else inf for client in who])
    assert asked == [1, 6, 23, 88, 153, 218, 283]


def test_three_answers_take_back_a_silence():
    def next_quarantine(answers):
        patience = Patience(2, shortest=1.0)
        exchange(patience, 1, [0, 1], [1.0, inf])
        for round in range(6, 6 + answers):
            exchange(patience, round, [0, 1], [1.0, 1.0])
        exchange(patience, 20, [0, 1], [1.0, inf])
        return sum(1 in patience.quarantined(round) for round in range(21, 200))

    assert [next_quarantine(answers) for answers in range(5)] == [16, 10, 6, 4, 4]


def test_answers_to_polls_do_not_make_up_for_silence_in_training():
    patience = Patience(2, shortest=1.0)
    for round in (1, 6):
        exchange(patience, round, [0, 1], [0.1, 0.1], "poll")
        exchange(patience, round, [0, 1], [1.0, inf])
    assert patience.quarantined(22).tolist() == [1]
    assert exchange(patience, 30, [0, 1], [0.1, 0.1], "poll") == 0.1


def test_a_late_answer_tells_that_a_client_is_slow_and_not_silent():
    patience = Patience(100, shortest=1.0)
    exchange(patience, 1, [0, 1, 2], [1.0, 1.0, 1.0])
    wait = patience.wait("train", 2, np.array([0, 3]), 60.0)
    wait.answered(0, 1.0)
    wait.close(3.0)
    assert patience.quarantined(3).tolist() == [3]
    wait.late(1, 8.0)
    assert patience.quarantined(3).size == 0
    assert exchange(patience, 3, [0, 3], [1.0, 8.0]) == 8.0


def test_late_answers_end_a_quarantine_however_often_the_client_was_asked():
    """It is asked in rounds 1, 6 and 23; the answer to the first message shows that it is slow."""
    patience, waits = Patience(100, shortest=1.0), []
    for round in (1, 6, 23):
        waits.append(patience.wait("train", round, np.array([0, 1]), 3600.0))
        waits[-1].answered(0, 10.0)
        waits[-1].close(waits[-1].end())
    assert patience.quarantined(24).tolist() == [1]
    waits[0].late(1, 400.0)
    assert patience.quarantined(24).size == 0
    assert exchange(patience, 24, [0, 1], [10.0, 400.0], limit=3600.0) == 400.0


def test_late_answers_to_polls_do_not_end_a_quarantine_for_never_training():
    patience = Patience(100, shortest=1.0)
    for round in (1, 6):
        exchange(patience, round, [0, 1], [1.0, inf])
    poll = patience.wait("poll", 7, np.array([0, 1]), 60.0)
    poll.answered(0, 1.0)
    poll.close(3.0)
    poll.late(1, 4.0)
    assert patience.quarantined(8).tolist() == [1]


def test_a_client_for_which_a_round_does_not_wait_is_not_silent():
    patience = Patience(3, shortest=1.0)
    wait = patience.wait("train", 1, np.array([0, 1, 2]), 60.0)
    wait.answered(0, 1.0)
    wait.answered(1, 1.5)  # enough: over-selection
    wait.close(1.5)
    assert patience.quarantined(2).size == 0


@pytest.mark.parametrize(("seconds", "silent"), [(0.5, []), (20.0, [2])])
def test_who_goes_offline_is_silent_if_the_round_has_waited(seconds, silent):
    patience = Patience(3, shortest=1.0)
    exchange(patience, 1, [0, 1, 2], [10.0, 10.0, 10.0])
    wait = patience.wait("train", 2, np.array([0, 1, 2]), 60.0)
    for position in (0, 1):
        wait.answered(position, 10.0)
    wait.lost(2, seconds)
    assert wait.end() == 0.0  # nobody is left to wait for
    wait.close(max(10.0, seconds))
    assert patience.quarantined(3).tolist() == silent


def rounds_of(silent, m=8, **faults):
    logic = RoundLogic(create("uniform", m, clients_per_round=2), Faults(**faults), shortest_deadline=1.0)
    wait = logic.wait("train", 1, np.arange(m), 60.0)
    for client in set(range(m)) - set(silent):
        wait.answered(client, 1.0)
    wait.close(60.0)
    return logic


def test_silent_clients_are_not_selectable():
    logic = rounds_of([2, 5])
    everyone, some = logic.open(2), logic.open(2, np.array([1, 2, 3, 4]))
    assert (everyone.num_available, everyone.quarantined.tolist()) == (6, [2, 5])
    assert everyone.silent.tolist() == [2, 5]
    assert (some.num_available, some.quarantined.tolist()) == (3, [2])
    assert logic.open(6).quarantined.size == 0


def test_if_most_clients_are_silent_none_is_quarantined():
    assert rounds_of([0, 1, 2, 3]).open(2).silent.tolist() == [0, 1, 2, 3]
    assert rounds_of([0, 1, 2, 3, 4]).open(2).silent.size == 0
    assert rounds_of([0], m=2, quorum=2).open(2).silent.size == 0
    assert rounds_of(list(range(8))).open(2).num_available == 8


def test_without_silence_nobody_is_quarantined_and_waits_are_learned():
    logic = rounds_of([2, 5], silence=False)
    assert logic.open(2).quarantined.size == 0
    wait = logic.wait("train", 2, np.array([0, 2]), 60.0)
    wait.answered(0, 1.0)
    assert wait.end() == 12.0  # a fifth of the limit


def test_patience_goes_on_bit_for_bit_from_its_state():
    def play(patience, rounds):
        ends = []
        for round in rounds:
            rng = np.random.default_rng(round)
            who = [client for client in range(9) if client not in patience.quarantined(round)]
            seconds = np.where(rng.random(len(who)) < 0.2, inf, rng.gamma(2.0, 3.0, len(who)))
            ends.append(exchange(patience, round, who, seconds.tolist(), KINDS[round % 3]))
            if round == 9:
                patience.add_clients(1)
        return ends

    straight, first, second = Patience(8, 1.0), Patience(8, 1.0), Patience(0, 1.0)
    straight.add_clients(1)
    first.add_clients(1)
    expected = play(straight, range(1, 30))
    begun = play(first, range(1, 15))
    second.load_state_dict(first.state_dict())
    assert begun + play(second, range(15, 30)) == expected
    for name, array in straight.state_dict().items():
        np.testing.assert_array_equal(array, second.state_dict()[name], name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"until": np.zeros(3, dtype=np.int32)}, r"state\['until'\] has dtype int32"),
        ({"debts": np.zeros((2, 3), dtype=np.uint8)}, r"state\['debts'\] has shape \(2, 3\)"),
        ({"more": np.zeros(1)}, "state has keys"),
        ({"poll/times": np.full(3, nan)}, r"state\['poll/times'\] has shape \(3,\)"),
        ({"train/back_off": np.array(99)}, r"state\['back_off'\] = 99"),
    ],
)
def test_a_wrong_state_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Patience(3, 1.0).load_state_dict({**Patience(3, 1.0).state_dict(), **change})
