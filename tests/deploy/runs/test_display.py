"""Every round and failure is printed, as plain lines or on a live display of 80 columns."""

import json
from io import StringIO

import pytest
from rich.console import Console

from deploy.runs.display import LiveDisplay, PlainDisplay, report
from deploy.runs.trials import Trial

from ...support.histories import write_history


def console(*, terminal=False, width=80):
    output = StringIO()
    return Console(file=output, force_terminal=terminal, width=width, color_system=None), output


@pytest.fixture
def trial(tmp_path):
    return Trial("md", {}, write_history(tmp_path / "md", [2.0, 1.5, 1.0], "md"))


def test_plain_lines_name_the_selected_clients_with_counts_and_probabilities(trial):
    to, output = console()
    PlainDisplay(to, rounds=True).lines(trial, trial.history.rounds[-1:])
    assert output.getvalue().splitlines() == [
        "md  round 2: client-03 failed: late",
        "md  round 2/2  selected 00 ×2 p=.25, 03 p=.25 ✗  "
        "test loss 1.000  accuracy 90.0 %  train loss 1.100  2.0 s",
    ]


ESCAPES = "\x1b[2J\x1b]52;c;cm0gLXJmIH4=\x07"
SHOWN = r"\x1b[2J\x1b]52;c;cm0gLXJmIH4=\x07"


def hostile(trial):
    """Append rounds to a history whose texts are a client's, as an older version wrote them."""
    last = {**trial.history.rounds[-1], "round": 3, "skipped": f"why{ESCAPES}"}
    last["client_ids"] = [f"client-{ESCAPES}", *last["client_ids"][1:]]
    last["failures"] = [{"client": f"client-{ESCAPES}", "reason": f"late{ESCAPES}\u202e"}]
    roster = {"type": "roster", "client_ids": [ESCAPES], "client_sizes": [1.0]}
    with trial.history.path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in (roster, last))


def test_a_clients_terminal_escapes_are_shown_and_not_obeyed(trial):
    hostile(trial)
    lines = trial.history.read()
    assert trial.history.client_ids[0] == SHOWN
    to, output = console()
    display = PlainDisplay(to, rounds=True)
    display.lines(trial, lines)
    display.event(f"the engine says {ESCAPES}")
    to.print(report([trial.history]))
    shown = output.getvalue()
    assert shown.splitlines()[0] == rf"md  round 3: client-{SHOWN} failed: late{SHOWN}\u202e"
    assert f"selected {SHOWN} ×2" in shown
    assert shown.replace("\n", "").isprintable()


def test_the_live_display_obeys_no_client(trial):
    hostile(trial)
    trial.history.read()
    to, output = console(terminal=True)
    with LiveDisplay(to, [trial], "run"):
        pass
    assert "\x1b[2J" not in output.getvalue()
    assert "\x1b]52" not in output.getvalue()
    assert r"\x1b[2J" in output.getvalue()


def test_a_quiet_display_prints_failures_only(trial):
    to, output = console()
    PlainDisplay(to, rounds=False).lines(trial, trial.history.rounds)
    assert output.getvalue().splitlines() == [
        "md  round 1: client-03 failed: late",
        "md  round 2: client-03 failed: late",
    ]


def test_a_long_round_is_told_unless_quiet(trial):
    for rounds, shown in ((True, "md  round 3 has taken 61 s so far\n"), (False, "")):
        to, output = console()
        PlainDisplay(to, rounds=rounds).waits(trial, 61.2)
        assert output.getvalue() == shown


def test_a_round_without_selected_clients(tmp_path):
    history = write_history(tmp_path / "md", [2.0, 1.5], "md", clients=[[]])
    to, output = console()
    PlainDisplay(to, rounds=True).lines(Trial("md", {}, history), history.trained)
    assert "selected nobody" in output.getvalue()


def test_losses_that_are_not_finite_are_dashes(tmp_path):
    history = write_history(tmp_path / "md", [2.0, None, None], "md")
    history.rounds[-1]["test_accuracy"] = history.rounds[-1]["seconds"] = None
    history.rounds[-1]["probabilities"] = [None, 0.001]
    trial = Trial("md", {}, history)
    to, output = console()
    PlainDisplay(to, rounds=True).lines(trial, history.rounds[-1:])
    assert output.getvalue().splitlines()[-1] == (
        "md  round 2/2  selected 00 ×2 p=–, 03 p=.001 ✗  test loss –  accuracy –  train loss –  –"
    )
    history.rounds[-1]["probabilities"] = [0.0, 0.00001]
    to, output = console()
    PlainDisplay(to, rounds=True).lines(trial, history.rounds[-1:])
    assert "p=.00, 03 p=1e-05" in output.getvalue()
    to, output = console(terminal=True)
    with LiveDisplay(to, [trial], "4 clients"):
        pass
    assert "test loss –" in output.getvalue()
    to, output = console()
    to.print(report([history]))
    assert "–" in output.getvalue()


def test_a_trial_that_cannot_be_drawn_does_not_affect_the_others(trial, tmp_path):
    odd = Trial("odd", {}, write_history(tmp_path / "odd", [2.0, 1.0], "odd"))
    del odd.history.rounds[-1]["counts"]
    to, output = console(terminal=True)
    with LiveDisplay(to, [odd, trial], "4 clients"):
        pass
    assert "odd: cannot be shown: KeyError('counts')" in output.getvalue()
    assert "selected 00 ×2" in output.getvalue()


def test_the_live_display_fits_80_columns(trial, tmp_path):
    waiting = Trial("new", {}, write_history(tmp_path / "new", [2.0]))
    waiting.history.rounds.clear()
    long = Trial("long", {}, write_history(tmp_path / "long", [2.0, 1.0], "adaptive-osmd", "a=1 " * 30))
    to, output = console(terminal=True)
    with LiveDisplay(to, [trial, waiting, long], "4 clients"):
        pass
    lines = output.getvalue().split("4 clients")[-1].splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "round 2/2" in text
    assert "selected 00 ×2 p=.25, 03 p=.25 ✗" in text
    assert "2 failed" in text
    assert "waiting to start" in text


def test_the_report_marks_unfinished_trials(tmp_path):
    trials = [
        write_history(tmp_path / "a", [2.0, 1.0]),
        write_history(tmp_path / "b", [2.0], "md", end=False),
    ]
    to, output = console()
    to.print(report(trials))
    text = output.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("not finished") == 1
    assert "The largest of 4 clients counts as large" in " ".join(text.split())
