"""The data files of results."""

import json
import math

import numpy as np
import pytest

from benchmarks import fresh
from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.report import Curve, Experiment, Outcome, Report, table
from benchmarks.results import machine as machine_module
from benchmarks.results.files import FOLDER, POINTS, Measured, Recorded, read, recorded, write
from benchmarks.results.machine import machine, same_arithmetic
from benchmarks.results.tables import output_table

FACTS = {
    "measured": "2026-01-02",
    "command": "c",
    "commit": "abc",
    "sources": "d",
    "data": "",
    "machine": {"cpu": "x"},
}


def report(*, log_y=False):
    each = Experiment("toy", lambda seed: Outcome({}), log_y=log_y)
    x = np.arange(1000.0)
    outcomes = [
        Outcome(
            {("md", "loss"): 0.1 + 0.2 * seed, ("md", "rounds"): math.nan if seed else math.inf},
            {"p": {"md": Curve(x, x + 1 + seed)}},
        )
        for seed in range(2)
    ]
    return Report(each, outcomes, [1.26, 2.0])


def test_a_file_keeps_every_value_bit_for_bit(tmp_path):
    found = recorded(report(), **FACTS)
    path = write(found, tmp_path)
    assert path.name == "toy.json"
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = read(tmp_path)["toy"]
    assert isinstance(back, Recorded)
    assert back.values("md", "loss") == [0.1, 0.1 + 0.2]
    assert back.rows["md"]["rounds"] == ["inf", None]
    assert back.seconds == [1.3, 2.0]
    assert back.outcome(1) == {("md", "loss"): 0.1 + 0.2, ("md", "rounds"): None}
    first = table(report())
    assert table(back.report(report().experiment)).splitlines()[-3:] == first.splitlines()[-3:]
    with pytest.raises(KeyError, match=r"results/toy.json has no cell 'md', 'accuracy'"):
        back.values("md", "accuracy")


@pytest.mark.parametrize("log_y", [False, True])
def test_curves_are_thinned_means_and_deviations(log_y):
    points = recorded(report(log_y=log_y), **FACTS).curves["p"]["md"]
    assert len(points["x"]) == len(points["mean"]) == len(points["deviation"]) == POINTS
    assert points["x"][0] == 0.0
    assert points["x"][-1] == 999.0
    both = [math.log(1000), math.log(1001)] if log_y else [1000, 1001]
    assert points["mean"][-1] == pytest.approx(np.mean(both), rel=1e-3)
    assert points["deviation"][-1] == pytest.approx(np.std(both, ddof=1), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "not a file of results"), ('{"name": "toy", "rows": {}}', "not a file"), ("[]", "not a file")],
)
def test_a_damaged_file_is_an_error(tmp_path, text, reason):
    (tmp_path / "toy.json").write_text(text)
    with pytest.raises(ValueError, match=reason):
        read(tmp_path)


def test_a_file_under_a_wrong_name_is_an_error(tmp_path):
    write(Measured("a", "2026-01-01", "c", "abc", {}, []), tmp_path).rename(tmp_path / "b.json")
    with pytest.raises(ValueError, match="holds the results of 'a'"):
        read(tmp_path)


def test_the_output_of_a_benchmark_becomes_a_table(tmp_path):
    lines = [{"name": "md", "cpu_ms": 1.23456}, {"name": "forecast", "cpu_ms": None}]
    write(Measured("selection", "2026-01-02", "c", "abc", {}, lines), tmp_path)
    back = read(tmp_path)["selection"]
    assert isinstance(back, Measured)
    assert cells(back.output) == [["name", "cpu ms"], ["md", "1.23"], ["forecast", ""]]
    nested = [{"ours": {"s": 2.0, "by": {"gRPC": 1}}, "theirs": {"s": 4.0}}]
    assert cells(nested) == [["", "s", "by, gRPC"], ["ours", "2", "1"], ["theirs", "4", ""]]
    deep = [{"W1": {"ours": {"s": 2.0}, "theirs": {"s": 12345.6}}}]
    assert cells(deep)[1:] == [["W1, ours", "2"], ["W1, theirs", "12346"]]


def cells(output):
    """Return the cells of a benchmark's table, without the rule below the heads."""
    head, _, *lines = output_table("x", output)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in (head, *lines)]


def test_the_machine_has_what_decides_the_arithmetic():
    here = machine()
    assert all(here[key] for key in ("cpu", "cores", "blas", "python", "numpy"))
    assert same_arithmetic(here, {**here, "cores": 99, "flwr": "0"})
    assert not same_arithmetic(here, {**here, "blas": "another"})


@pytest.mark.parametrize(
    ("theirs", "blas", "variables"),
    [
        ("A B", "lib 1 Old", {"OPENBLAS_CORETYPE": "Old"}),
        ("A B", "lib 1 New", {}),
        ("A B", "lib 2 Old", {}),
        ("", "lib 1 Old", {}),  # another kind of CPU
        ("A C", "lib 1 Old", {}),  # this machine has no C
        ("A", "lib 1 Old", {"NPY_DISABLE_CPU_FEATURES": "B", "OPENBLAS_CORETYPE": "Old"}),
        ("A", "lib 2 Old", {"NPY_DISABLE_CPU_FEATURES": "B"}),
    ],
)
def test_a_rerun_uses_the_instructions_of_the_record_if_the_machine_has_them(
    monkeypatch, theirs, blas, variables
):
    monkeypatch.setattr(machine_module, "machine", lambda: {"vectors": "A B", "blas": "lib 1 New"})
    assert machine_module.restricted_to({"vectors": theirs, "blas": blas}) == variables


def test_a_new_process_computes_as_a_machine_with_fewer_instructions():
    here = machine()
    *fewer, last = here["vectors"].split() or [""]
    if not fewer:
        pytest.skip("NumPy reports at most one group of instructions here")
    record = {**here, "vectors": " ".join(fewer)}
    found = fresh.call_with(machine_module.restricted_to(record), machine_module.machine)
    assert found["vectors"] == record["vectors"], last


def test_the_files_of_this_repository_can_be_read():
    found = read()
    assert len(found) > 50
    for name, each in found.items():
        if isinstance(each, Recorded):
            assert name in EXPERIMENTS
            assert len(each.seeds) == len(each.seconds) >= EXPERIMENTS[name].seeds
            assert {len(values) for row in each.rows.values() for values in row.values()} == {len(each.seeds)}
            assert len(each.sources) == 16
            assert each.commit
    assert max(path.stat().st_size for path in FOLDER.glob("*.json")) < 500_000
