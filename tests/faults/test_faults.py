"""Seeded histories full of faults; see `tests.faults`."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from strategies.checkpoint import CheckpointFolder
from strategies.clients.roster import Roster
from strategies.flower import exchanges
from strategies.flower.exchanges import readable
from strategies.rounds.aggregation import Model
from strategies.rounds.logic import RoundLogic
from strategies.rounds.response_rates import ResponseRates
from strategies.selectors import Selector
from strategies.server_steps.step import ServerStep
from tests.faults.__main__ import main, tell
from tests.faults.play import play
from tests.faults.script import KILLS, accepted_selectors, draw


def hold(seeds):
    """Play histories; the first that violates an invariant is printed in full."""
    for seed in seeds:
        outcome = play(seed)
        assert not outcome.error, f"\n{tell(outcome)}"


def test_fifty_histories_hold():
    hold(range(50))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(50, 2_050, 250))
def test_two_thousand_histories_hold(first):
    """A defect that breaks one history of 668 is found with a probability of 95 %."""
    hold(range(first, first + 250))


def test_a_seed_is_a_history():
    one, other = draw(17), draw(17)
    assert one == other
    assert one != draw(18)
    first, second = play(17), play(17)
    assert first.story == second.story


def test_the_histories_of_make_test_cover_all_options():
    scripts = [draw(seed) for seed in range(300)]
    assert {script.options["selector"] for script in scripts} == set(accepted_selectors())
    assert set(accepted_selectors()) > {"adaptive-osmd", "pow-d", "flics", "flics-private", "forecast"}
    assert {kill.moment for script in scripts for kill in script.kills} == set(KILLS)
    assert all(3 <= script.num_rounds <= 10 and 2 <= len(script.nodes[0]) <= 8 for script in scripts)
    levels = [script.options["guard"] for script in scripts]
    assert all(levels.count(level) > 30 for level in ("sane", "strict", False))
    assert {script.options["variates"] for script in scripts} == {None, "fedvarp", "scaffold"}
    assert {script.options["correction"] for script in scripts} == {"equal", "rates"}
    assert len({script.options["server_strategy"] for script in scripts}) >= 8
    assert any(script.options.get("masked_updates") for script in scripts)
    assert any(script.ghosts for script in scripts)
    assert any(script.asleep for script in scripts)


Broken = Callable[[pytest.MonkeyPatch], None]


def weights_are_not_corrected(monkeypatch):
    def finalize(self, selection, responded):
        return np.where(responded, selection.weights, 0.0)

    monkeypatch.setattr(Selector, "finalize", finalize)


def an_answer_counts_twice(monkeypatch):
    fold = Model.fold

    def twice(self, updates):
        updates = list(updates)
        return fold(self, updates + updates[:1])

    monkeypatch.setattr(Model, "fold", twice)


def the_last_answer_counts(monkeypatch):
    monkeypatch.setattr(exchanges, "readable", lambda replies: list(readable(replies))[::-1])


def clients_are_renumbered(monkeypatch):
    ids = Roster.ids
    monkeypatch.setattr(Roster, "ids", lambda self: sorted(ids(self), reverse=len(self) > 6))


def the_unwilling_are_asked(monkeypatch):
    available = Roster.available

    def all_of_them(self, node_ids):
        unavailable, self._unavailable = self._unavailable, set()
        try:
            return available(self, node_ids)
        finally:
            self._unavailable = unavailable

    monkeypatch.setattr(Roster, "available", all_of_them)


def a_part_is_not_loaded(part):
    return lambda monkeypatch: monkeypatch.setattr(part, "load_state_dict", lambda self, state: None)


def failures_have_no_reason(monkeypatch):
    finish = RoundLogic.finish

    def silent(self, *given):
        outcome = finish(self, *given)
        return replace(outcome, record=replace(outcome.record, failures={}))

    monkeypatch.setattr(RoundLogic, "finish", silent)


def the_checkpoint_is_of_the_round_before(monkeypatch):
    newest = CheckpointFolder.newest

    def older(self, fingerprint=None):
        rounds = self.rounds()
        if len(rounds) > 1:
            self._file(rounds[-1]).unlink()
        return newest(self, fingerprint)

    monkeypatch.setattr(CheckpointFolder, "newest", older)


# Each with the seed at which the search begins: the first that finds it today.
DEFECTS = {
    "weights are not corrected": (weights_are_not_corrected, 6),
    "an answer counts twice": (an_answer_counts_twice, 37),
    "the last answer counts": (the_last_answer_counts, 122),
    "clients are renumbered": (clients_are_renumbered, 0),
    "the unwilling are asked": (the_unwilling_are_asked, 0),
    "failures have no reason": (failures_have_no_reason, 0),
    "the checkpoint is of the round before": (the_checkpoint_is_of_the_round_before, 0),
    "the selector is not loaded": (a_part_is_not_loaded(Selector), 7),
    "response rates are not loaded": (a_part_is_not_loaded(ResponseRates), 0),
    "the server strategy is not loaded": (a_part_is_not_loaded(ServerStep), 0),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(defect, monkeypatch):
    broken, first = DEFECTS[defect]
    broken(monkeypatch)
    found = next((outcome for outcome in map(play, range(first, 200)) if outcome.error), None)
    assert found is not None
    told = tell(found)
    assert f"BROKEN: {found.error}" in told
    assert told.endswith(f"play it again: python -m tests.faults --seed {found.script.seed}")
    assert f"selector = {found.script.options['selector']!r}" in told


def test_the_command_plays_one_seed_and_many(monkeypatch, capsys):
    def run(*given):
        monkeypatch.setattr("sys.argv", ["tests.faults", *given])
        assert main() == 0
        return capsys.readouterr().out

    assert run("--seed", "17").startswith("seed 17: ")
    assert run("--seeds", "17:20").startswith("3 histories in ")
