import numpy as np
import pytest

from benchmarks.experiments.power_of_choice import mnist as poc
from benchmarks.experiments.power_of_choice import mnist_training as training
from benchmarks.experiments.report import Curve
from simulation.kernels import MLP
from simulation.simulator import Simulator
from tests.support.made_data import made

IMAGES = 1600
EXPERIMENTS = {each.name: each for each in poc.EXPERIMENTS}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return made(tmp_path_factory.mktemp("data"), "mnist", 1400, IMAGES - 1400)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_known_figure_has_a_cell(name, file, monkeypatch):
    """The columns are those of the full form; training itself is not needed for that."""
    x = np.arange(5.0, 401, 5)
    given = []

    def pretended(federation, case, trial, seed):
        given.append((case, trial))
        last = min(case.num_rounds, trial.num_rounds or case.num_rounds)
        return training.Track(Curve(x[x <= last], x[x <= last] / 4), Curve(x[3:4], x[3:4]), 0.36)

    monkeypatch.setattr(poc, "train", pretended)
    experiment = EXPERIMENTS[name]
    cells = experiment.run(0, file).cells
    assert experiment.known.keys() <= cells.keys()
    assert len(given) == len(experiment.run.keywords["cases"]) * len(experiment.run.keywords["trials"])
    assert all(case.num_rounds % training.EVALUATED == 0 for case, _ in given)
    if experiment.name == "poc-mnist":
        assert (cells["rand", "R60"], cells["rand", "R85"]) == (
            240,
            340,
        )  # of the made-up curve, which ends at 100
        assert cells["rand", "accuracy at 160"] == pytest.approx(np.mean(np.arange(125, 161, 5)) / 4)
        assert cells["rand", "accuracy at 400"] == pytest.approx(np.mean(np.arange(365, 401, 5)) / 4)
        assert ("rand, C=.1", "accuracy at 400") not in cells
        assert ("rand, C=.1", "R85") not in cells  # it ends at round 160, with an accuracy of 40 %
        assert experiment.run(0, file, targets=(40.0,)).cells["rand, C=.1", "R40"] == 160
        assert cells["rand", "t_comp, ms"] == pytest.approx(360)
        given.clear()
        quick = experiment.run(0, file, quick=True).cells
        assert {row for row, _ in quick} == {row for row, _ in cells}
        assert {case.num_rounds for case, _ in given} == {40}


def test_images_are_distributed_as_in_appendix_f(file):
    federation = training.make_federation(file, 3, 0.3)
    data = federation.data
    assert data.num_clients == 100
    assert len(data.labels) == 0.8 * IMAGES
    assert len(federation.test) == 0.15 * IMAGES
    rows = {row.tobytes() for row in data.inputs}
    assert len(rows) == len(data.labels)  # all images differ, and nobody's is another's
    assert rows.isdisjoint(row.tobytes() for row in federation.test.inputs)
    assert data.inputs.max() <= 1
    spread = np.std(data.sizes()) / np.mean(data.sizes())
    even = training.make_federation(file, 3, 2.0).data.sizes()
    assert spread > np.std(even) / np.mean(even)  # a smaller α: sizes differ more
    assert np.array_equal(federation.some.labels, data.labels[::8])


def test_an_incomplete_file_is_named(tmp_path):
    path = tmp_path / "mnist.npz"
    np.savez(path, x_train=np.zeros((2, 28, 28), np.uint8), y_train=np.zeros(2))
    with pytest.raises(
        ValueError, match=r"mnist.npz must be an .npz with x_train, y_train, x_test and y_test"
    ):
        training.make_federation(path, 0, 0.3)


@pytest.mark.parametrize(
    "trial", [poc._RAND, poc._POW, poc._CPOW, poc._RPOW], ids=lambda trial: trial.selector
)
def test_t_comp_is_the_slowest_loss_and_then_the_slowest_training(trial, file):
    case = training.Case(0.3, 20, batch_size=8, local_steps=2)
    federation = training.make_federation(file, 0, 0.3)
    sizes = federation.data.sizes()
    batch = 4 if trial is poc._CPOW else None
    if batch:
        trial = trial._replace(settings=trial.settings | {"batch_size": batch})
    simulator = Simulator(
        federation.data,
        MLP(training.SIZES),
        trial.selector,
        clients_per_round=3,
        num_rounds=20,
        learning_rate=training.learning_rate,
        batch_size=8,
        local_steps=2,
        selector_settings=trial.settings,
    )
    # The noise alone: what a client with nothing but 30 batches of 64 to do takes.
    noise = training.Clock(np.full(100, 64), training.Case(0.3, 20), seed=0).training
    total = 0.0
    for round in range(1, 21):
        asked = simulator.selector.candidates(round)
        if asked is not None:
            looked_at = np.minimum(sizes[asked], batch or sizes.max())
            total += (noise.seconds(round, asked) * looked_at / 3 / 1920).max()
        chosen = simulator.step().selection.clients
        total += (noise.seconds(round, chosen) * 2 * np.minimum(sizes[chosen], 8) / 1920).max()
    assert training.train(federation, case, trial, 0).seconds == pytest.approx(total / 20)


def test_the_clock_is_fitted_to_the_papers_times_of_rand():
    seconds = training.Clock(np.full(100, 560), training.Case(0.3, 400), seed=0).training
    for clients, paper in ((3, 0.36), (10, 0.42)):
        rng = np.random.default_rng(clients)
        rounds = [
            seconds.seconds(round, rng.choice(100, clients, replace=False)).max() for round in range(1, 2001)
        ]
        assert np.mean(rounds) == pytest.approx(paper, abs=0.005)
