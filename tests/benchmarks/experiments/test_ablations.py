"""The ablations, on a little made data."""

from dataclasses import replace

import pytest

from benchmarks.experiments import ablations, real_tasks
from tests.support.made_data import made


@pytest.fixture(autouse=True)
def small(monkeypatch):
    setting = replace(ablations.MNIST, num_clients=15, partition="dirichlet:1", num_rounds=60)
    monkeypatch.setattr(ablations, "MNIST", setting)
    monkeypatch.setattr(ablations, "CLIENTS", (12, 15))
    monkeypatch.setattr(real_tasks, "REDRAWS", 20)
    monkeypatch.setattr(ablations, "BUSY", (6, 24))
    monkeypatch.setattr(ablations, "SIZES", (3,))


@pytest.mark.parametrize(
    ("run", "same"),
    [
        (ablations.learners, "md, balanced"),
        (ablations.local_steps, "10 steps, balanced"),
        (ablations.share, "10 of 15, balanced"),
    ],
)
def test_every_ablation_has_its_rows_and_one_that_all_three_share(run, same, tmp_path):
    path = made(tmp_path, "mnist", 300, users=15)
    cells = run(3, path, quick=True).cells
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    assert len(rows) == 6 if run is ablations.share else 9
    assert cells.keys() == {(row, column) for row in rows for column in columns}
    alike = ablations.learners(3, path, quick=True).cells
    assert [cells[same, column] for column in columns] == pytest.approx(
        [alike["md, balanced", column] for column in columns], nan_ok=True
    )
    name = same.rpartition(", ")[0]
    assert cells[same, "error of the aggregate"] < cells[f"{name}, independent", "error of the aggregate"]


def test_the_own_rate_of_a_task_gives_the_same_run_as_the_task(tmp_path, monkeypatch):
    small = replace(ablations.MNIST, learning_rate=0.1)  # a faster task in its place
    monkeypatch.setitem(ablations.SETTINGS, ablations.CIFAR, small)
    path = made(tmp_path, "mnist", 300, users=15)
    cells = ablations.rates(3, path, quick=True).cells
    assert {row for row, _ in cells} == {
        f"{name}, rate {rate}" for name in ablations.RATED for rate in (0.05, 0.1, 0.2)
    }
    methods = {name: real_tasks.METHODS[name] for name in ablations.RATED}
    same = real_tasks.run(3, path, setting=small, methods=methods, quick=True).cells
    for name in ablations.RATED:
        final = {rate: cells[f"{name}, rate {rate}", "final accuracy, %"] for rate in (0.05, 0.1, 0.2)}
        assert final[0.1] == same[name, "final accuracy, %"]
        assert len(set(final.values())) > 1


def test_more_busy_clients_send_more_updates():
    cells = ablations.buffers(1, quick=True).cells
    for name in ablations.BUFFERED:
        for size in ablations.SIZES:
            few, many = (cells[f"{name}, {busy} busy, buffer {size}", "updates a second"] for busy in (6, 24))
            assert many > 2 * few
