"""What `cohort advise` says about slow clients, from histories of the batched simulation and edited ones."""

import json

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.engines import batched
from deploy.runs.slow_client_advice import slow_clients
from server.history import read_lines

SETTINGS = {
    **{"num-clients": 12, "num-rounds": 25, "clients-per-round": 4, "selector": "md", "seed": 1},
    **{"evaluate-every": 25, "local-steps": 1},
}
BUFFERED = {"mode": "buffered", "concurrency": 6}


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Return a function that simulates a run and returns its folder."""
    played = {}

    def run(**more):
        key = json.dumps(more, sort_keys=True)
        if key not in played:
            played[key] = tmp_path_factory.mktemp("slow")
            named = {name.replace("_", "-"): value for name, value in more.items()}
            batched.run({**SETTINGS, "output-dir": str(played[key]), **named})
        return played[key]

    return run


def said(folder):
    found = slow_clients(folder / "history.jsonl")
    return found.text() if found else ""


@pytest.mark.parametrize(
    ("settings", "expected", "absent"),
    [
        ({"response_times": "sigma=0,jitter=0.01"}, "nothing to turn on", "mode=buffered"),
        ({"response_times": "sigma=2,jitter=0.1"}, "--selector timed-md", "over-selection"),
        ({"response_times": "sigma=0.1,jitter=1"}, "--set over-selection=1.3", "timed-md"),
        ({"response_times": "sigma=1", "selector": "uniform"}, "--set mode=buffered", "timed-"),
        ({"response_times": "dropout=0.4", "round_deadline": 60}, "had no reply in time", "max-staleness"),
        ({**BUFFERED, "response_times": "sigma=1"}, "Nothing to change.", "mode=buffered"),
        (
            {**BUFFERED, "response_times": "sigma=1", "staleness_power": 0.5, "max_staleness": 2},
            "raise max-staleness (now 2). staleness-power = 0.5 takes weight",
            "Nothing to change",
        ),
        ({**BUFFERED, "response_times": "sigma=1", "count_busy": False}, "count-busy=true", "Nothing"),
    ],
)
def test_what_is_turned_on_follows_from_the_durations(play, settings, expected, absent):
    text = said(play(**settings))
    assert text.startswith("Slow clients: of ")
    assert expected in text
    assert absent not in text


def test_a_selector_without_buffered_rounds_hears_why(play):
    text = said(play(response_times="sigma=1", selector="delta", local_steps=2))
    assert "Buffered rounds would end this wait, but selector = 'delta'" in text


def test_without_durations_nothing_is_said(play):
    assert said(play()) == ""


def test_a_history_without_its_selector_is_named(play, tmp_path):
    first, *rest = read_lines(play(response_times="sigma=1") / "history.jsonl")
    del first["selector"]
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *rest]))
    with pytest.raises(ValueError, match=r"history\.jsonl: its first line does not name the selector"):
        slow_clients(path)


def test_advise_reads_a_buffered_run(play):
    folder = play(**BUFFERED, response_times="sigma=1")
    result = CliRunner().invoke(cli, ["advise", str(folder)])
    assert result.exit_code == 0
    assert "Rounds are buffered, so other selectors cannot be studied." in result.output
    assert "Slow clients: of " in result.output
    refused = CliRunner().invoke(cli, ["advise", str(folder), "--selector=md"])
    assert refused.exit_code == 2
    assert "its rounds are buffered" in refused.output


@pytest.mark.parametrize(
    ("settings", "names", "advised"),
    [
        ({}, ["replies", "idle", "missing", "between", "within", "advice"], "--selector timed-md"),
        (BUFFERED, ["replies", "between", "within", "advice"], "Nothing to change."),
    ],
)
def test_the_json_has_the_numbers_and_sentences_of_the_text(play, settings, names, advised):
    folder = play(**settings, response_times="sigma=2,jitter=0.1")
    result = CliRunner().invoke(cli, ["advise", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert ("uniform" in found) == (settings != BUFFERED)
    slow = found["slow_clients"]
    assert list(slow) == names
    assert slow["between"] > slow["within"] > 0
    assert advised in slow["advice"][-1]
    text = said(folder)
    assert f"of {slow['replies']:,} durations" in text
    assert f"{slow['between']:.2f} between clients and {slow['within']:.2f}" in text
    assert text.endswith(" ".join(slow["advice"]))
    if "idle" in slow:
        assert f"{slow['idle']:.0%} of a round's wait is left" in text


def test_without_durations_the_json_has_selectors_only(play):
    result = CliRunner().invoke(cli, ["advise", str(play()), "--json"])
    assert result.exit_code == 0, result.output
    assert "slow_clients" not in json.loads(result.stdout)


def test_the_history_says_who_trains_when_a_buffered_round_ends(play):
    lines = read_lines(play(**BUFFERED, response_times="sigma=1") / "history.jsonl")
    rounds = [line for line in lines if line["type"] == "round" and line["round"]]
    for line in rounds:
        assert len(line["in_flight"]) == 6 - 1  # the last arrival has left its place
        assert not set(line["in_flight"]) & set(line["client_ids"])
