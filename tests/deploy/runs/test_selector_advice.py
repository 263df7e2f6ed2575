"""`cohort advise`: from the folder of a run to the JSON object, the table and the sentence."""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.engines import batched
from deploy.runs.selector_advice import find_history, read_log
from server.history import read_lines

from ...support.processes import simulate_here

NAMES = (
    *("uniform", "md", "mabs", "vrb", "avare", "prac-is", "adaptive-osmd"),
    *("adaptive-osmd:learning-rate-multiplier=100", "forecast"),
)


def cohort(*arguments):
    return CliRunner().invoke(cli, [*map(str, arguments)])


def lines(folder):
    return read_lines(folder / "history.jsonl")


def log_of(folder):
    return read_log(find_history(folder)).rounds


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Return the folder of a comparison that `cohort simulate` made."""
    folder = tmp_path_factory.mktemp("advice") / "run"
    names = [each for name in ("md", "uniform", "pow-d") for each in ("--selector", name)]
    arguments = ("--clients", 8, "--rounds", 15, "--per-round", 2, "--out", folder, "--quiet", *names)
    with pytest.MonkeyPatch.context() as monkeypatch:
        simulate_here(monkeypatch)
        result = cohort("simulate", "--engine", "batched", *arguments)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def edited(comparison, tmp_path):
    """Return a function that copies the uniform trial and changes its lines."""

    def edit(change):
        changed = change(lines(comparison / "uniform"))
        (tmp_path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
        return tmp_path

    return edit


def each_round(**values):
    """Change values in the lines of the rounds from 1 on; a function takes the line."""

    def change(all_lines):
        for line in all_lines:
            if line["type"] == "round" and line["round"]:
                line |= {key: value(line) if callable(value) else value for key, value in values.items()}
        return all_lines

    return change


@pytest.mark.parametrize(
    "damage",
    [
        {"clients": [99, 1]},
        {"counts": [10**30, 1]},
        {"probabilities": None},
        {"absent": [99], "num_available": 7},
        {"num_available": "x"},
    ],
)
def test_a_damaged_round_is_refused_with_the_name_of_the_file(edited, damage):
    result = cohort("advise", edited(each_round(**damage)))
    assert result.exit_code == 2, result.output
    assert "history.jsonl: " in result.output  # the lines are left out, or contradict each other


def test_json_is_all_that_is_printed(comparison):
    result = cohort("advise", comparison, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert tuple(found) == NAMES
    for each in found.values():
        assert list(each) == ["variance", "low", "high", "exact"]
        assert 0 < each["low"] <= each["variance"] <= each["high"]
    assert found["uniform"] == {"variance": 1.0, "low": 1.0, "high": 1.0, "exact": True}
    assert [name for name in NAMES if found[name]["exact"]] == ["uniform", "md"]


def test_the_folder_of_a_trial_and_a_choice_of_selectors(comparison):
    result = cohort("advise", comparison / "md", "--selector", "md", "--selector", "avare", "--json")
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)) == ["uniform", "md", "avare"]


def test_the_table_ends_with_advice(comparison):
    result = cohort("advise", comparison)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "from 15 rounds of" in text
    assert "uniform/history.jsonl" in text.replace(" ", "")
    assert "replayed" in text
    assert ("Use " in text) != ("The log cannot tell: in its 15 rounds," in text)


def test_the_importance_in_the_log_is_that_of_the_draws(comparison):
    for name in ("md", "uniform"):
        rounds = log_of(comparison / name)
        assert len(rounds) == 15
        for round in rounds:
            expected = round.counts / (round.counts.sum() * round.probabilities)
            np.testing.assert_allclose(round.importance, expected, rtol=1e-6)


def test_unavailable_clients_are_in_the_history(tmp_path):
    config = {"num-clients": 8, "num-rounds": 40, "seed": 5, "clients-per-round": 2, "selector": "md"}
    run = {**config, "availability": "uniform:rates=0.6", "output-dir": str(tmp_path)}
    batched.run(run)
    rounds = [line for line in lines(tmp_path) if line["type"] == "round" and line["round"]]
    assert any(line["absent"] for line in rounds)
    for line in rounds:
        assert len(line["absent"]) == 8 - line["num_available"]
        assert not {*line["absent"]} & {*line["clients"]}
    for logged in log_of(tmp_path):
        if logged.clients.size < 8 - logged.absent.size and not logged.everyone:
            expected = logged.counts / (logged.counts.sum() * logged.probabilities)
            np.testing.assert_allclose(logged.importance, expected, rtol=1e-6)
    result = cohort("advise", tmp_path, "--selector", "forecast", "--json")
    assert result.exit_code == 0, result.output


def test_a_missing_norm_or_reply_is_made_up_for(edited, comparison):
    """In each round with two clients the first one's norm is missing: the other's importance doubles."""

    def without_first(line):
        norms = line["update_norms"]
        return [None, *norms[1:]] if len(norms) == 2 else norms

    before = log_of(comparison / "uniform")
    after = log_of(edited(each_round(update_norms=without_first)))
    for one, other in zip(before, after, strict=True):
        if one.clients.size == 2:
            assert other.clients.tolist() == [one.clients[1]]
            np.testing.assert_allclose(other.importance, 2 * one.importance[1:])


def test_skipped_rounds_are_left_out(edited):
    def skip(line):
        return "quorum" if line["round"] == 3 else ""

    assert [each.number for each in log_of(edited(each_round(skipped=skip)))] == [1, 2, *range(4, 16)]


def without(kind):
    return lambda all_lines: [line for line in all_lines if line["type"] != kind]


def few_rounds(all_lines):
    return [line for line in all_lines if line.get("round", 0) < 5]


def buffered(all_lines):
    return [{**all_lines[0], "mode": "buffered"}, *all_lines[1:]]


def no_rounds(all_lines):
    return [line for line in all_lines if not line.get("round")]


def other_sizes(all_lines):
    for line in all_lines:
        if line["type"] == "roster":
            line["used_sizes"] = line["used_sizes"][::-1]
    return all_lines


def one_client(all_lines):
    for line in all_lines:
        if line["type"] == "roster":
            line |= {"client_ids": ["client-00"], "client_groups": None}
            line |= {"client_sizes": [5], "used_sizes": [5]}
    return all_lines


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (buffered, "cannot be studied: its rounds are buffered"),
        (no_rounds, "has no round in which clients trained"),
        (few_rounds, "has 4 round(s) with norms in which a selector must leave clients out; at least 10"),
        (one_client, "has one client, so there is nothing to select"),
        (other_sizes, "the weights do not follow from the data sizes in the history"),
        (without("roster"), "has no roster line before round 1"),
        (without("run"), "its first line, the settings of the run, is missing"),
        (each_round(update_norms=lambda line: [None] * len(line["clients"])), "has no update norms"),
        (each_round(update_norms=lambda line: [0.0] * len(line["clients"])), "all update norms are 0"),
        (each_round(probabilities=lambda line: [0.0] * len(line["clients"])), "is not above 0"),
        (each_round(num_available=7), "does not say which clients were unavailable"),
        (each_round(num_available=7, absent=lambda line: line["clients"][:1]), "an unavailable client was"),
    ],
)
def test_a_history_that_cannot_be_studied_is_refused(edited, change, message):
    result = cohort("advise", edited(change))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not result.stdout


@pytest.mark.parametrize("guard", ["sane", "strict"])
def test_the_log_of_a_simulation_of_many_clients_can_be_studied(tmp_path, guard, monkeypatch):
    """Of 200 clients with skewed sizes, strict clips some: the history has the sizes that were used."""
    simulate_here(monkeypatch)
    arguments = ("--clients", 200, "--rounds", 12, "--per-round", 10, "--out", tmp_path / "run", "--quiet")
    result = cohort("simulate", *arguments, "--selector", "md", "--set", f"guard={guard}")
    assert result.exit_code == 0, result.output
    assert cohort("advise", tmp_path / "run").exit_code == 0
    all_lines = lines(tmp_path / "run" / "md")
    (roster,) = (line for line in all_lines if line["type"] == "roster")
    assert (roster["used_sizes"] == roster["client_sizes"]) == (guard == "sane")
    assert all_lines[0]["guard"] == guard


def test_a_field_that_is_missing_is_named(edited):
    def change(all_lines):
        for line in all_lines:
            line.pop("weights", None)
        return all_lines

    assert "cannot be studied, since it has no 'weights'" in cohort("advise", edited(change)).stderr


def test_other_bad_input_is_refused(comparison, tmp_path):
    biased = tmp_path / "biased"
    shutil.copytree(comparison / "pow-d", biased)
    for arguments, message in (
        ([tmp_path / "nowhere"], "holds no history (history.jsonl)"),
        ([biased], "selector = 'pow-d' of the run: no variance can be estimated from its log, since"),
        ([comparison, "--selector", "pow-d"], "selector = 'pow-d': cannot be studied"),
        ([comparison, "--selector", "delta"], "it polls clients for diversity, gradient_variance"),
        ([comparison, "--selector", "nope"], "selector = 'nope': must be one of"),
        ([comparison, "--selector", "osmd:alpha=3"], "alpha = 3"),
    ):
        result = cohort("advise", *arguments)
        assert result.exit_code == 2, result.output
        assert message in result.stderr


def test_the_folder_of_a_sweep_is_refused_with_a_trial(tmp_path):
    trial = tmp_path / "trials" / "md-seed-1"
    trial.mkdir(parents=True)
    (trial / "history.jsonl").write_text("")
    for command in ("advise", "plot"):
        assert f"of a sweep, name a trial, such as {trial}" in cohort(command, tmp_path).stderr
