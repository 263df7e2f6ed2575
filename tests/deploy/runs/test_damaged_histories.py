"""Histories that are damaged or edited: one message with the file and the line, and no traceback."""

import json
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.runs.display import report
from deploy.runs.figure import draw
from deploy.runs.trial_statistics import summarise
from server.history import read_run

from ...support.histories import write_history


def one_with(path, at, field, value):
    """Change one field of one line of a history, and read it as the commands do."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[at][field] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (history,) = read_run(path.parent)
    return history


@pytest.mark.parametrize(
    ("at", "field", "value"),
    [
        (0, "num_rounds", "9"),
        (0, "selector", 10**400),
        (2, "client_ids", [1, 2, 3, 4]),
        (2, "client_sizes", [1.0]),
        (4, "round", 1.5),
        (4, "round", 10**20),
        (4, "round", -1),
        (4, "clients", [0, 99]),  # there are 4 clients
        (4, "clients", [0, -1]),
        (4, "clients", "x" * 1_000_000),
        (4, "counts", [True, 1]),
        (4, "counts", [1]),
        (4, "probabilities", {"a": 1}),
        (4, "responded", ["yes", "no"]),
        (4, "failures", [{"client": 3}]),
        (4, "test_loss", "low"),
        (4, "phases", [1]),
        (4, "group_metrics", {"a": {"loss": []}}),
    ],
)
def test_a_field_of_the_wrong_kind_is_named_and_its_line_left_out(tmp_path, caplog, at, field, value):
    history = one_with(write_history(tmp_path / "md", [2.0, 1.0, 0.5, 0.4]).path, at, field, value)
    (warning,) = caplog.messages
    assert f"history.jsonl, line {at + 1}: not a line of a history: {field} " in warning
    assert len(warning) < 500
    Console(file=StringIO()).print(report([history]))


@pytest.mark.parametrize("value", [1e308, -1e308, 10**400, float("nan"), float("inf")])
def test_a_number_too_large_to_be_summed_is_as_unknown_as_infinity(tmp_path, value):
    path = write_history(tmp_path / "md", [2.0, 1.0, 0.5, 0.4]).path
    history = one_with(path, 4, "test_loss", value)
    assert [line["test_loss"] for line in history.rounds] == [2.0, 1.0, None, 0.4]
    assert one_with(path, 2, "client_sizes", [value] * 4).client_sizes == [0.0] * 4
    Console(file=StringIO()).print(report([history]))


def test_a_round_far_away_costs_no_memory(tmp_path):
    history = one_with(write_history(tmp_path / "md", [2.0, 1.0]).path, 3, "round", 2**31 - 1)
    draw([history], tmp_path / "figure.png")
    history = one_with(history.path, 3, "counts", [2**31 - 1, 1])
    assert summarise(history).large_share < 1e-9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("selector", "x"),
        ("selector_settings", "x"),
        ("num_rounds", 0),
        ("clients_per_round", 0),
        ("clients_per_round", None),
    ],
)
def test_advise_names_the_file_whose_settings_are_wrong(tmp_path, field, value):
    path = write_history(tmp_path / "md", [2.0] + [1.0] * 20).path
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= {"clients_per_round": 3, "seed": 1, "client_sizes": "", field: value}
    for line in lines[3:-1]:
        line |= {"num_available": 4, "weights": [2 / 9, 2 / 3], "update_norms": [1.0, 1.0]}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = CliRunner().invoke(cli, ["advise", str(path.parent)])
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert (
        field.replace("_", "-") in result.stderr.replace("_", "-") or "settings of the run" in result.stderr
    )
