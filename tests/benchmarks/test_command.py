"""The registry of benchmarks: every command is listed and runs, and bad options are refused first."""

import json
from dataclasses import replace
from functools import partial

import pytest
from typer.testing import CliRunner

from benchmarks.command import bench
from benchmarks.experiments import EXPERIMENTS, SELECTION
from benchmarks.experiments.forecast.streams import STREAMS
from benchmarks.experiments.osmd import section_f
from benchmarks.experiments.report import Experiment
from tests.support.toy_experiments import experiment, seeds_run, toy_with_data

COMMANDS = [
    *(
        "papers",
        "selectors",
        "results",
        "rounds",
        "messages",
        "models",
        "networks",
        "half-precision",
        "devices",
        "front-ends",
        "waiting",
    ),
    *("aggregation", "selection", "population", "throughput", "over-selection", "time-to-accuracy", "advice"),
]


def run(*arguments, **environment):
    return CliRunner().invoke(bench, [*map(str, arguments)], env={"COHORT_DATA": "", **environment})


@pytest.fixture
def here(monkeypatch):
    """Run the command's jobs and measurements in this process; the other tests start processes."""
    monkeypatch.setattr("benchmarks.fresh.call", lambda function, *given: function(*given))
    monkeypatch.setattr(
        "benchmarks.experiments.running.on_this_machine", lambda jobs, _, execute: map(execute, jobs)
    )


def test_the_help_lists_every_command_on_one_line():
    help_ = run("--help").stdout
    rows = [
        line.strip("│ ").split(maxsplit=1)
        for line in help_.partition("Commands")[2].splitlines()[1:]
        if "│" in line
    ]
    assert [name for name, _ in rows] == COMMANDS
    assert all(text.endswith(".") for _, text in rows)


def test_a_file_of_devices_without_speeds_is_refused_by_name(tmp_path):
    (tmp_path / "devices.json").write_text('{"a": {"computation": 0, "communication": 1}}')
    refused = run("time-to-accuracy", "--devices", tmp_path / "devices.json")
    assert refused.exit_code == 2
    assert "device 'a': computation = 0: must be a number of milliseconds > 0" in refused.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    assert run(name, "--help").exit_code == 0


def test_aggregation_is_measured_in_a_process_of_its_own():
    options = ("--replies", 2, "--parameters", 1e4, "--repeats", 1, "--selectors", "uniform", "--json")
    result = run("aggregation", *options)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["name"] for row in rows] == ["Flower's FedAvg", "uniform"]
    assert rows[0]["ratio"] == 1
    assert all(row["seconds"] > 0 for row in rows)


@pytest.mark.usefixtures("here")
def test_selection_is_measured_cell_by_cell():
    result = run("selection", "--sizes", "50,1e2", "--names", "textbook", "--seconds", 0, "--json")
    assert result.exit_code == 0, result.output
    cells = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(cell["name"], cell["clients"], cell["problem"]) for cell in cells] == [
        ("textbook", 50, ""),
        ("textbook", 100, ""),
    ]
    assert all(cell["megabytes"] > 5 for cell in cells)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("path", ["simulator", "grid"])
def test_each_part_of_a_round_is_measured(path):
    result = run("population", "--sizes", "300", "--path", path, "--rounds", 1, "--json")
    assert result.exit_code == 0, result.output
    (column,) = (json.loads(line) for line in result.stdout.splitlines())
    parts = column["milliseconds"]
    whole = parts.pop("round")
    assert {"availability", "guard", "choose: selection", "checkpoint: file", "history"} <= parts.keys()
    assert ("attendance" in parts) == (path == "grid")
    assert sum(parts.values()) == pytest.approx(whole)


def test_over_selection_takes_less_time_and_is_biased():
    result = run("over-selection", "--rounds", 40, "--seeds", 2, "--json")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 2 * 2 * (1 + 3 * 3)
    assert all(row["time"] < 1 for row in rows if row["factor"] > 1)
    fast = [row["bias"] for row in rows if row["spread"] == 1.0 and row["way"] == "equal"]
    assert fast[0] < fast[3]


def test_advice_is_measured_on_every_stream():
    result = run("advice", "--seeds", 1, "--rounds", 12, "--clients", 8, "--per-round", 2)
    assert result.exit_code == 0, result.output
    rows = [line for line in result.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 * (1 + len(STREAMS) + 1)
    assert [sum(map(int, row.split("|")[-4:-1])) for row in rows if row.startswith("| all streams")] == [
        len(STREAMS),
        len(STREAMS),
    ]


# The papers' experiments.


papers = partial(run, "papers")


def test_the_quick_form_writes_table_numbers_and_figure(tmp_path):
    result = papers("osmd-f6", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert sorted(each.name for each in tmp_path.iterdir()) == ["quick"]
    quick = tmp_path / "quick"
    assert (quick / "osmd-f6.md").read_text() in result.stdout
    assert (quick / "osmd-f6.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((quick / "osmd-f6.json").read_text())
    assert content["quick"]
    (seed,) = content["seeds"]
    expected = section_f.run_f6(0, num_rounds=section_f.T // 10).cells
    assert {(row, column): value for row, line in seed.items() for column, value in line.items()} == expected
    assert len(expected) == 6 * 5

    before = (quick / "seeds" / "osmd-f6-0.json").stat().st_mtime_ns
    again = papers("osmd-f6", "--quick", "--out", tmp_path)
    assert again.stdout == result.stdout
    assert (quick / "seeds" / "osmd-f6-0.json").stat().st_mtime_ns == before


@pytest.fixture
def two(monkeypatch, tmp_path, here):
    """The command knows a toy, and one that needs data."""
    folder = tmp_path / "toys"
    folder.mkdir()
    needing = Experiment("needy", partial(toy_with_data, folder=folder), data="number.txt", seeds=1)
    known = {"toy": experiment(folder, seeds=1), "needy": needing}
    monkeypatch.setattr("benchmarks.experiments.EXPERIMENTS", known)
    return folder


def test_experiments_without_their_data_are_skipped(two, tmp_path):
    result = papers("--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "skipped, since number.txt is missing: needy; name its folder with --data or" in (result.stderr)
    assert seeds_run(two) == ["0"]
    assert not (tmp_path / "out" / "needy.md").exists()
    (two / "number.txt").write_text("4")
    result = papers("--out", tmp_path / "out", COHORT_DATA=str(two))
    assert result.exit_code == 0, result.output
    assert seeds_run(two) == ["0", "4"]
    assert (tmp_path / "out" / "needy.md").exists()


@pytest.mark.usefixtures("here")
def test_experiments_for_a_gpu_run_without_one_only_if_they_are_named(tmp_path, monkeypatch):
    known = {
        name: replace(experiment(tmp_path, seeds=1, gpu=gpu), name=name)
        for name, gpu in (("toy", False), ("large", True))
    }
    monkeypatch.setattr("benchmarks.experiments.EXPERIMENTS", known)
    monkeypatch.setattr("benchmarks.experiments.command.gpu", lambda: "")
    result = papers("--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "skipped, since there is no GPU: large\n" in result.stderr
    assert not (tmp_path / "out" / "large.md").exists()
    assert papers("large", "--out", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "large.md").exists()
    assert "large   (; 1 seeds; needs a GPU)" in papers("--list").stdout


@pytest.mark.parametrize(
    ("arguments", "data", "message"),
    [
        (["needy", "toy"], "", "needy needs number.txt: name its folder with --data or COHORT_DATA"),
        (["needy", "toy"], "/tmp", "needy needs number.txt: put it into /tmp"),
        (["toy"], "/nowhere", "data = /nowhere: must be a folder (--data, or COHORT_DATA)"),
        (["tofu"], "", "experiment = 'tofu': must be one of toy, needy"),
        (["toy", "--out", "/proc/nope"], "", "/proc/nope"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(two, tmp_path, arguments, data, message):
    result = papers("--out", tmp_path / "out", *arguments, COHORT_DATA=data)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (two / "log").exists()
    assert not (tmp_path / "out").exists()


def test_a_failed_seed_fails_the_command(two, tmp_path):
    (two / "fail-0").touch()
    result = papers("toy", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "toy  seed 0  failed: ValueError: seed 0 is a bad one" in result.stderr
    assert "1 seeds failed; the same command runs them again" in result.stderr
    (two / "fail-0").unlink()
    assert papers("toy", "--out", tmp_path / "out").exit_code == 0


def test_the_experiments_are_listed():
    for command, known in (("papers", EXPERIMENTS), ("selectors", SELECTION)):
        result = run(command, "--list")
        assert result.exit_code == 0
        assert [line.split()[0] for line in result.stdout.splitlines()] == list(known)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rounds", "--nodes", "2", "--per-round", "3"), "per-round = 3: must be between 1 and 2 (nodes)"),
        (("advice", "--clients", "5"), "per-round = 5: must be between 1 and 4 (one less than clients)"),
        (("aggregation", "--layout", "round"), "layout = 'round': must be one of layers, one"),
        (("throughput", "--engines", "loop,tensorflow"), "engines = 'tensorflow': must be one of batched"),
        (("throughput", "--workload", "W9"), "workload = 'W9': must be one of W1, W2, W3, W4, all"),
        (("throughput", "--data", "nowhere.npz"), "data = nowhere.npz: there is no such file"),
        (("models", "--megabytes", "many"), "megabytes = 'many': must be finite numbers with commas, each"),
        (("models", "--megabytes", "1,0.5"), "megabytes = '1,0.5': must be finite numbers with commas, each"),
        (("selection", "--sizes", "1e4,nan"), "sizes = '1e4,nan': must be finite numbers with commas, each"),
        (("selection", "--sizes", "0"), "sizes = '0': must be finite numbers with commas, each at least 1"),
        (("population", "--sizes", "inf"), "sizes = 'inf': must be finite numbers with commas, each at"),
        (("population", "--sizes", "199"), "sizes = '199': must be finite numbers with commas, each at"),
        (("selection", "--seconds", "nan"), "'--seconds': nan is not a finite number."),
        (("selection", "--seconds", "inf"), "'--seconds': inf is not a finite number."),
        (("throughput", "--seconds", "0"), "'--seconds': 0.0 is not in the range x>0"),
        (("front-ends", "--nodes", "9"), "per-round = 50,10: must be between 1 and 9 (nodes)"),
        (
            ("waiting", "--fronts", "2,x"),
            "fronts = '2,x': must be finite numbers with commas, each at least 1",
        ),
        (("devices", "--megabytes", "-1"), "'--megabytes': -1.0 is not in the range x>0"),
    ],
)
def test_bad_options_are_refused(arguments, message):
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.replace("│", "").split())
