"""`cohort check` on whole apps: what it prints follows from what the app's client replies."""

import logging
import re
import shutil

import numpy as np
import pytest
from flwr.app import ArrayRecord
from typer.testing import CliRunner

from deploy.cli import cli
from simulation.grid import InProcessGrid
from strategies import SelectionStrategy
from strategies.selectors.registry import available

from ...support.environments import ROOT

NUM_SELECTORS = len(available())
# Cohort has packages with the names of these two modules.
PROJECT = """\
[project]
name = "plain"
version = "1.0.0"

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"

[tool.flwr.app.config]
size = 3
optimizer.rate = 0.5
"""
SERVER = """\
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    print("to stdout, where the findings go")
    strategy = FedAvg(fraction_train=0.5)
    strategy.start(grid, ArrayRecord([np.zeros(context.run_config["size"])]), num_rounds=3)
"""
CLIENT = """\
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    (model,) = message.content["arrays"].to_numpy_ndarrays()
    arrays = ArrayRecord([model + context.run_config["optimizer.rate"]])
    metrics = MetricRecord({"num-examples": 7})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
"""
# What `cohort check` tells the author of this app to add, all of it.
REPORTS = CLIENT.replace('{"num-examples": 7}', """{
        "num-examples": 7, "train-loss": 1.0, "gradient-variance": 2.0,
        "num-parts": 2, "model-norm": 0.5, "personal-norm": 0.5,
    }""").replace(
    "from flwr.clientapp import ClientApp\n", "from flwr_cohort import Report, ReportingClientApp\n"
).replace("ClientApp()", 'ReportingClientApp(report=lambda context: Report(group="a"))') + """

app.query("update")(train)


@app.evaluate()
def evaluate(message, context):
    return Message(RecordDict({"m": MetricRecord({"num-examples": 7, "loss": 1.0})}), reply_to=message)
"""  # fmt: skip


class _Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Return the folder of a plain Flower app, which is the working directory."""
    for name, text in (("pyproject.toml", PROJECT), ("server.py", SERVER), ("client.py", CLIENT)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def checked(*arguments):
    done = CliRunner().invoke(cli, ["check", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments):
    """Return the error of `cohort check`: one line, and nothing else."""
    done = CliRunner().invoke(cli, ["check", *arguments])
    assert done.exit_code == 2, done.output
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    return line


def usable(output):
    """Return the selectors that an output says to work."""
    listed = re.search(r"The app can use\n  selectors(.*?)\n  designs", output, re.S)
    assert listed
    return set(listed[1].replace(",", " ").split())


def test_an_app_with_fedavg(app):
    output = checked()
    found = usable(output)
    assert output.startswith(
        f"{len(found)} of {NUM_SELECTORS} selectors and all 7 designs work with this app"
    )
    assert {"uniform", "forecast", "divfl", "tifl"} < found
    assert "train       num-examples 7; 1 array, norm of the update 0.866\n" in re.sub(" +\n", "\n", output)
    assert "no handler  evaluate, query.status, query.loss, query.norm, query.update," in output
    # The selectors with the same need share a row.
    assert re.search(r"rpow-d, afl, oort +train-loss in the reply of @app.train\(\)", output)
    assert re.search(r"pow-d, cpow-d, +loss in the reply of @app.evaluate\(\)", output)
    assert max(map(len, output.splitlines())) <= 80


def test_each_line_of_code_gives_what_is_missing(app):
    before = usable(checked())
    (app / "client.py").write_text(REPORTS)
    output = checked()
    assert usable(output) - before == {
        "optimal", "personalised-osmd", "delta", "prac-delta", "fed-is", "pow-d", "cpow-d", "rpow-d",
        "adapow-d", "afl", "flics", "naive-group", "oort",
    }  # fmt: skip
    assert usable(output) == set(available()) - {"lipschitz-is", "flics-private"}
    assert 'Overrides(settings={"lipschitz": {"CLIENT": ...}})' in output
    assert 'selector_settings={"group_shares": ...}' in output
    assert "evaluate      num-examples 7, loss 1" in output
    assert re.search(r"query.status .*group a", output)


@pytest.mark.parametrize("source", [CLIENT, REPORTS], ids=["plain", "reports"])
def test_a_run_with_each_selector_shows_the_same(app, source):
    (app / "client.py").write_text(source)
    found = usable(checked())
    assert {name for name in available() if not _problem(source, name)} == found


def _problem(source, selector):
    """Return why three rounds with a selector fail, or what the selector lacks; "" if nothing."""
    client = {}
    exec(source.replace("flwr_cohort", "strategies"), client)
    nodes = ({"partition-id": i, "num-partitions": 4} for i in range(4))
    grid = InProcessGrid(client["app"], nodes, run_config={"optimizer.rate": 0.5})
    warnings = _Warnings()
    logging.getLogger("flwr").addHandler(warnings)
    try:
        strategy = SelectionStrategy(selector, clients_per_round=2, min_available_clients=4)
        strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=3)
    except (RuntimeError, ValueError) as error:
        return str(error)
    finally:
        logging.getLogger("flwr").removeHandler(warnings)
    lacks = [
        each for each in warnings.texts if "no client has reported" in each or "No client reports" in each
    ]
    return strategy.unchanged or " ".join(lacks)


def shown():
    """Return the output that docs/your-own-app.md shows for a template."""
    found = re.search(r"\$ cohort check\n(.*?)```", (ROOT / "docs" / "your-own-app.md").read_text(), re.S)
    assert found
    return found[1]


def _masked(output):
    """Return the lines without measured numbers, which depend on the versions of packages."""
    return [re.sub(r"\d+\.\d+", "#", line).rstrip() for line in output.splitlines()]


@pytest.mark.parametrize("name", ["quickstart-numpy", "own-selector", "quickstart-pytorch"])
def test_a_template(name, tmp_path, monkeypatch):
    pytest.importorskip("torch" if name.endswith("pytorch") else "sklearn")
    folder = shutil.copytree(ROOT / "examples" / name, tmp_path / name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    output = checked()
    found = usable(output)
    assert {"forecast", "pow-d", "oort", "fed-is"} < found
    assert found.isdisjoint({"flics", "delta", "prac-delta", "lipschitz-is"})
    assert ("by-power" in found) == (name == "own-selector")  # the selector of the app itself
    if name == "quickstart-numpy":
        printed = _masked(output)
        assert [line for line in _masked(shown()) if line not in {*printed, "..."}] == []
        change(folder / "quickstart_numpy" / "client_app.py", '"train-loss": loss, ', "")
        assert found - usable(checked()) == {"rpow-d", "afl", "oort"}


@pytest.mark.parametrize(
    ("file", "old", "new", "error"),
    [
        ("pyproject.toml", "[project]", "[", r"pyproject\.toml: .*line 1"),
        ("pyproject.toml", "tool.flwr", "tool.other", r"\.toml: 'flwr' is missing; a Flower app has"),
        ("pyproject.toml", "client:app", "client:application", r"imported: AttributeError: .*'application'"),
        ("client.py", "app =", "import nowhere\napp =", r"imported: ModuleNotFoundError: .*nowhere.*line 4"),
        ("client.py", "app =", "raise SystemExit(3)\napp =", r"imported: SystemExit: 3 \(client.py, line"),
        ("client.py", "app =", "import os; os._exit(3)\napp =", "ended its process with exit status 3"),
        ("client.py", "optimizer.rate", "rate", r"in training: KeyError: 'rate' \(client\.py, line 10\)"),
        ("client.py", "@app.train()", "@app.evaluate()", "fails in training: ValueError: No train function"),
        ("client.py", '"arrays": arrays, ', "", "0 array records in the reply: must be 1"),
        ("client.py", "model + ", "model[1:] + ", r"cannot be used: .*shape"),
        ("client.py", "num-examples", "n", r"no num-examples, .*, but n: add MetricRecord\(.*"),
        ("server.py", '["size"]', '["sise"]', r"the first training: KeyError: 'sise' \(server.py, line"),
        ("server.py", "    strategy.start", "    return\n    strategy.start", "sends no TRAIN message"),
        ("server.py", "fraction_train=0.5", "min_available_nodes=11", "more than 10 clients, .*--clients"),
        ("server.py", "@app.main()", "", r"has no function @app\.main\(\)"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_app_takes_one_line(app, file, old, new, error):
    change(app / file, old, new)
    assert re.search(error, refused())


def test_a_folder_without_an_app(app):
    (app / "pyproject.toml").unlink()
    assert "pyproject.toml: No such file or directory; run this in the folder of a Flower app" in refused()


def test_more_clients(app):
    change(app / "server.py", "fraction_train=0.5", "min_available_nodes=11")
    assert "forecast" in usable(checked("--clients", "11"))


def test_an_app_that_uses_cohort_and_waits_for_more_clients(app):
    change(app / "server.py", "flwr.serverapp.strategy import FedAvg", "flwr_cohort import Forecast")
    waits = "Forecast(clients_per_round=3, min_available_clients=11)"
    change(app / "server.py", "FedAvg(fraction_train=0.5)", waits)
    assert re.search("more than 10 clients, .*--clients", refused())


def test_a_handler_that_fails_gives_nothing(app):
    returns = '    return Message(RecordDict({"m"'
    (app / "client.py").write_text(REPORTS.replace(returns, f"    1 / 0\n{returns}"))
    output = checked()
    assert "evaluate      fails: ZeroDivisionError: division by zero (client.py" in output
    assert usable(output).isdisjoint({"pow-d", "cpow-d", "adapow-d"})


def test_an_app_in_half_precision(app):
    change(app / "client.py", "ClientApp()", "ClientApp(mods=[half_precision_mod])")
    change(app / "server.py", "(grid, Array", "(HalfPrecisionGrid(grid), Array")
    for file, name in (("client.py", "half_precision_mod"), ("server.py", "HalfPrecisionGrid")):
        change(app / file, "\napp =", f"\nfrom flwr_cohort.half_precision import {name}\n\napp =")
    assert "train       num-examples 7; 1 array " in checked()
