import json
import re

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.runs.selectors import describe
from strategies.selectors.registry import available, selector_type


def shown(*arguments):
    result = CliRunner().invoke(cli, ["selectors", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


def test_every_selector_has_a_line_that_fits():
    text = shown()
    for name in available():
        (line,) = re.findall(rf"^ {name} .*$", text, re.MULTILINE)
        assert f" {selector_type(name).summary} " in line
        assert describe(name)["unbiased"] in line


@pytest.mark.parametrize(
    ("name", "needs", "unbiased"),
    [
        ("uniform", [], "each round"),
        ("pow-d", ["losses"], "no"),
        ("delta", ["updates of all", "variances of all"], "each round"),
        ("flics", ["groups"], "over time"),
        ("lipschitz-is", ["lipschitz"], "each round"),
    ],
)
def test_what_a_selector_needs_and_whether_it_is_unbiased(name, needs, unbiased):
    about = json.loads(shown(name, "--json"))[name]
    assert about["needs"] == needs
    assert about["unbiased"] == unbiased


def test_the_settings_of_a_selector_are_explained():
    text = shown("pow-d")
    assert "pow-d selects clients with the largest losses" in text
    assert "num-candidates" in text
    assert re.search(r"plain, sizes,\s", text)
    assert set(json.loads(shown("--json"))) == set(available())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("selectors", "forcast"), "selector = 'forcast': no such selector (did you mean forecast?)"),
        (("simulate", "--selector", "pow-d:num-candidate=3"), "(did you mean num_candidates?)"),
        (("simulate", "--set", "num-client=3"), "unknown setting (did you mean num-clients?)"),
        (("simulate", "--set", "server-strategy=FedAdan"), "(did you mean FedAdam?)"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_most_similar_one(arguments, reason):
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())
