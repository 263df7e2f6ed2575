"""Power-of-Choice on images: Table 1 of the paper, Table 2 and the other forms of appendix G, and appendix E.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022),
section 5 and appendices E, F and G, with `simulation.simulator`; on MNIST, and as printed on Fashion-MNIST.

=====================================  ==============================================================
the paper                              here
=====================================  ==============================================================
K = 100 clients, C, m = max(CK, 1)     M = 100 clients, K = `clients_per_round` of 3 (C = .03) or 10
rand: m draws by p_k, replaced         `md`
pow-d, cpow-d, rpow-d, adapow-d, afl   the same names; d is `num_candidates`
plain averages of the m models         the weights 1/K of these selectors, N_m/K of `md`
q_k = p_k K/m, uniform (appendix E)    `uniform` without replacement, whose weights λ_m M/K are the same
Dir_K(α)                               `tasks.partitions.dirichlet`: classes *and sizes* differ
.8 / .05 / .15 of all images           train / validation (not used) / test, of all 70,000 shuffled
MLP [64, 30], with dropout             the same without dropout
τ, b, η; η halved at 150 and 300       `local_steps`, `batch_size`, `learning_rate` of the round
t_comp                                 simulated, see `Clock`
=====================================  ==============================================================
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from simulation import availability
from simulation.kernels import MLP
from simulation.simulator import Simulator
from simulation.stragglers import ResponseTimes
from strategies.numerics.arrays import Floats, Ints
from strategies.selectors import Selection
from tasks.base import Dataset
from tasks.datasets import InMemory
from tasks.federated import FederatedData, federate
from tasks.partitions import dirichlet

M = 100
SIZES = (784, 64, 30, 10)
BATCH_SIZE, STEPS = 64, 30
EVALUATED, LOSS_EVERY = 5, 20
"""The test accuracy is measured every 5 rounds, the training loss, which costs more, every 20."""
WINDOW = 40
"""An accuracy is the mean over the evaluations of so many rounds: single rounds are points apart."""
SECONDS, JITTER = 0.296, 0.22
RAND = "rand"


class Arm(NamedTuple):
    """Who trains.

    Attributes
    ----------
    label : str
        Row of the table.
    selector, settings : str, dict
        Name in the registry, and its settings.
    clients_per_round : int
        The paper's m.
    by_data : bool
        Whether the chosen weigh by their data, q_k = p_k / sum_S p (appendix E), and not equally.
    num_rounds : int
        At most so many rounds; 0 = all.
    """

    label: str
    selector: str
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    clients_per_round: int = 3
    by_data: bool = False
    num_rounds: int = 0


class Case(NamedTuple):
    """What is trained on, and how.

    Attributes
    ----------
    alpha : float
        α of the Dirichlet distribution.
    num_rounds : int
        T.
    batch_size, local_steps : int
        b and τ.
    in_turns : bool
        Appendix G.3: two halves of the clients take turns, and a tenth of the half whose turn it is is away.
    name : str
        Before the labels of the case's rows, where an experiment has several.
    """

    alpha: float
    num_rounds: int
    batch_size: int = BATCH_SIZE
    local_steps: int = STEPS
    in_turns: bool = False
    name: str = ""


class Federation(NamedTuple):
    """The images.

    Attributes
    ----------
    data : FederatedData
        Of all clients.
    test : Dataset
        For the accuracy.
    some : Dataset
        Every eighth image of each client, for the training loss: shares of the clients are those of the data.
    """

    data: FederatedData
    test: Dataset
    some: Dataset


class Track(NamedTuple):
    """What one arm gave.

    Attributes
    ----------
    accuracy : Curve
        Test accuracy in %, after rounds 5, 10, ...
    loss : Curve
        Training loss in nats, after rounds 20, 40, ...
    seconds : float
        t_comp, the mean over the rounds.
    """

    accuracy: Curve
    loss: Curve
    seconds: float


def make_federation(file: Path, seed: int, alpha: float) -> Federation:
    """Shuffle all images of an .npz, train and test, and share .8 of them out over the clients.

    Raises
    ------
    OSError, ValueError
        If the file cannot be read, or has not the four arrays.
    """
    with np.load(file) as arrays:
        missing = {"x_train", "y_train", "x_test", "y_test"} - set(arrays.files)
        if missing:
            raise ValueError(f"{file} holds {sorted(arrays.files)}: must hold {sorted(missing)} too")
        pixels = np.concatenate([arrays[f"x_{half}"].reshape(-1, SIZES[0]) for half in ("train", "test")])
        labels = np.concatenate([arrays[f"y_{half}"] for half in ("train", "test")]).astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    train, _, test = np.split(order, [len(order) * 80 // 100, len(order) * 85 // 100])
    samples = InMemory(pixels, labels)
    data = federate(samples, [train[part] for part in dirichlet(labels[train], M, seed, alpha)])
    return Federation(data, samples.take(test), Dataset(data.inputs[::8], data.labels[::8]))


def learning_rate(round: int) -> float:
    """Return η of a round: .005, halved after 150 and after 300 rounds."""
    return 0.005 * 0.5 ** ((round > 150) + (round > 300))


class Clock:
    """The paper's t_comp of a round: the slowest candidate's loss, and then the slowest one's local training.

    All clients have one sort of machine, as in appendix F, with noise: a local update of 30 batches of 64
    takes .296 s · exp(.22 N(0, 1)), drawn for each client and round. These two numbers are fitted: with them
    rand takes the .36 s with 3 clients and the .42 s with 10 of the paper's tables; all other times follow.
    Work goes with the samples; to evaluate one costs a third of a training step on it, the forward pass
    without the two products of the backward pass. The server's own time, microseconds, is left out.

    Parameters
    ----------
    sizes : ndarray of int, shape (M,)
        Samples a client.
    case : Case
        τ and b.
    seed : int
        Of the noise.
    """

    def __init__(self, sizes: Ints, case: Case, seed: int) -> None:
        self._sizes, self._seed = sizes, seed
        self.training = self._times(case.local_steps * np.minimum(case.batch_size, sizes))

    def _times(self, samples: Floats | Ints) -> ResponseTimes:
        work = samples / (STEPS * BATCH_SIZE)
        return ResponseTimes(M, self._seed, median=SECONDS, sigma=0.0, jitter=JITTER, work=work)

    def polling(self, loss_batch_size: int | None) -> ResponseTimes:
        """Return how long each client takes to tell its loss on so many samples (None: on all)."""
        asked = self._sizes if loss_batch_size is None else np.minimum(loss_batch_size, self._sizes)
        return self._times(asked / 3)


def train(federation: Federation, case: Case, arm: Arm, seed: int) -> Track:
    """Run one arm; mini-batches and the model's start are the same for all arms of a seed."""
    num_rounds = min(case.num_rounds, arm.num_rounds or case.num_rounds)
    clock = Clock(federation.data.sizes(), case, seed)
    # The halves are the first and the last fifty clients, which differ by chance alone.
    here = availability.create("cyclic", M, seed=seed, rates=0.9) if case.in_turns else None
    simulator = Simulator(
        federation.data,
        MLP(SIZES),
        arm.selector,
        clients_per_round=arm.clients_per_round,
        num_rounds=case.num_rounds,
        learning_rate=learning_rate,
        batch_size=case.batch_size,
        local_steps=case.local_steps,
        seed=seed,
        selector_settings=arm.settings,
        availability=here,
        response_times=clock.training,
    )
    selector = simulator.selector
    if arm.by_data:
        weigh_by_data(simulator)
    polling, polled = clock.polling(getattr(selector, "loss_batch_size", None)), 0.0
    accuracies, losses = [], []
    for round in range(1, num_rounds + 1):
        asked = selector.candidates(round, available=None if here is None else here.here(round))
        if asked is not None:
            polled += float(polling.seconds(round, asked).max())
        simulator.step()
        if round % EVALUATED == 0:
            accuracies.append(100 * simulator.evaluate(federation.test).accuracy)
        if round % LOSS_EVERY == 0:
            losses.append(simulator.evaluate(federation.some).loss)
    return Track(
        Curve(EVALUATED * np.arange(1.0, len(accuracies) + 1), np.array(accuracies)),
        Curve(LOSS_EVERY * np.arange(1.0, len(losses) + 1), np.array(losses)),
        (simulator.seconds + polled) / num_rounds,
    )


def weigh_by_data(simulator: Simulator) -> None:
    """Let those whom the simulator's selector chooses weigh q_k = p_k / sum_S p, which sum to 1."""
    selector = simulator.selector
    choose = selector.select

    def select(*args: Any, **settings: Any) -> Selection:
        selection = choose(*args, **settings)
        sizes = selector.client_sizes[selection.clients]
        return replace(selection, weights=sizes / sizes.sum())

    selector.select = select  # type: ignore[method-assign]  # no selector has it as a setting


def _first_round(curve: Curve, target: float) -> float:
    reached = curve.y >= target
    return float(curve.x[np.argmax(reached)]) if reached.any() else math.nan


def _accuracy_at(curve: Curve, round: int) -> float:
    return float(curve.y[(curve.x > round - WINDOW) & (curve.x <= round)].mean())


def run(
    seed: int,
    file: Path,
    *,
    cases: tuple[Case, ...],
    arms: tuple[Arm, ...],
    targets: tuple[float, ...],
    early: tuple[int, ...] = (80,),
    timed: bool = False,
    quick: bool = False,
) -> Outcome:
    """Train all arms in all cases.

    Parameters
    ----------
    seed : int
        Of the split, the mini-batches, the start and the selectors.
    file : Path
        An .npz with x_train, y_train, x_test, y_test.
    cases : tuple of Case
        What is trained on; each is a group of rows.
    arms : tuple of Arm
        Who trains; each is a row. One has the label "rand", with which all others are compared.
    targets : tuple of float
        The accuracies, in %, of which the first round is a column: R60 for 60.
    early : tuple of int
        At which rounds accuracies are compared, beside the last one.
    timed : bool
        Whether t_comp is a column.
    quick : bool
        Only the first 40 rounds.
    """
    if quick:
        cases = tuple(each._replace(num_rounds=WINDOW) for each in cases)
    cells: dict[Cell, float] = {}
    accuracy: dict[str, dict[str, Curve]] = {}
    loss: dict[str, dict[str, Curve]] = {}
    for case in cases:
        federation = make_federation(file, seed, case.alpha)
        tracks = {arm.label: train(federation, case, arm, seed) for arm in arms}
        for label, track in tracks.items():
            row = f"{case.name}: {label}" if case.name else label
            last = track.accuracy.x[-1]
            for target in targets:
                first = _first_round(track.accuracy, target)
                if (
                    last == case.num_rounds or first < last
                ):  # one that was cut short has not "never" got there
                    cells[row, f"R{target:g}"] = first
            if timed:
                cells[row, "t_comp, ms"] = 1000 * track.seconds
            for at in (*(round for round in early if round < case.num_rounds), case.num_rounds):
                if at <= last:
                    own = _accuracy_at(track.accuracy, at)
                    cells[row, f"accuracy at {at}"] = own
                    cells[row, f"above rand's at {at}"] = own - _accuracy_at(tracks[RAND].accuracy, at)
        title = case.name or f"α = {case.alpha:g}"
        accuracy[f"test accuracy, %: {title}"] = {label: track.accuracy for label, track in tracks.items()}
        loss[f"training loss, nats: {title}"] = {label: track.loss for label, track in tracks.items()}
    return Outcome(cells, {**accuracy, **loss})


_RAND = Arm(RAND, "md")
_POW = Arm("pow-d, d=6", "pow-d", {"num_candidates": 6})
_CPOW = Arm("cpow-d, d=6", "cpow-d", {"num_candidates": 6})
_RPOW = Arm("rpow-d, d=50", "rpow-d", {"num_candidates": 50})
_AFL = Arm("afl", "afl")
_RAND_10 = Arm("rand, C=.1", "md", clients_per_round=10, num_rounds=160)
TABLE = (_RAND_10, _RAND, _POW, _CPOW, _RPOW, _AFL)
BESIDE = (
    Arm("adapow-d, d=12→3", "adapow-d", {"num_candidates": 12, "halve_every": 100}),
    Arm("uniform, q=pK/m", "uniform", {"replacement": False}, num_rounds=160),
    _POW._replace(label="pow-d, d=6, q∝p", by_data=True, num_rounds=160),
    Arm("cohort", "cohort"),
)
MANY = tuple(
    arm._replace(clients_per_round=10)
    for arm in (_RAND, Arm("pow-d, d=20", "pow-d", {"num_candidates": 20}), _RPOW)
)
"""Appendix G.5; the paper does not say which d. 20 is twice m, as 6 is of 3."""

PAPER = "Cho, Wang, Joshi 2022"
NOTE = (
    "M = 100 clients, 3 of them a round (C = .03), MLP 784-64-30-10 without the paper's dropout, η = .005, "
    "halved after 150 and after 300 rounds, τ = 30, b = 64. R: the first round with so much test accuracy, "
    "measured every 5 rounds; accuracies in %, means over the last 40 rounds."
)
T_COMP = (
    "t_comp is simulated: the slowest candidate's loss, then the slowest training, on equal machines with "
    "lognormal noise, fitted to the .36 and .42 s of rand with 3 and 10 clients in the paper; the others "
    "follow."
)


class _Images(NamedTuple):
    """A data set."""

    name: str
    title: str
    targets: tuple[float, ...]  # of the tables; the paper's is 60, on MNIST that is soon reached


_MNIST = _Images("mnist", "MNIST", (60.0, 85.0))
_FASHION = _Images("fashion-mnist", "Fashion-MNIST", (60.0,))


def _experiment(
    images: _Images,
    name: str,
    title: str,
    source: str,
    claim: str,
    note: str,
    known: Mapping[Cell, str] | None = None,
    targets: tuple[float, ...] = (),
    **settings: Any,
) -> Experiment:
    return Experiment(
        name=f"poc-{images.name}{name}",
        title=f"Power-of-Choice on {images.title}{title}",
        source=f"{PAPER}, {source}",
        run=functools.partial(run, targets=targets or images.targets, **settings),
        seeds=3,
        known=known or {},
        claim=claim,
        note=f"{NOTE} {note}".strip(),
        digits=1,
        data=f"{images.name}.npz",
    )


def _printed(rounds: tuple[int, ...], accuracies: tuple[float, ...], hundredths: tuple[int, ...]) -> str:
    """Return what a table of the paper says, of the rows of `TABLE`."""
    says = (
        f"{arm.label} {first}, {accuracy:g} %, .{time} s"
        for arm, first, accuracy, time in zip(TABLE, rounds, accuracies, hundredths, strict=True)
    )
    return f"on Fashion-MNIST R60, test accuracy and t_comp are: {'; '.join(says)}."


def _tables(images: _Images, known: Mapping[Cell, str], note: str = "") -> tuple[Experiment, ...]:
    """Return Tables 1 and 2 on a data set."""
    return (
        _experiment(
            images,
            "",
            ", Dirichlet 0.3",
            "Table 1, Figures 4(b) and 5(b); appendix E",
            _printed(
                (172, 234, 89, 80, 98, 121), (71.2, 64.9, 76.5, 76.6, 76.6, 73.3), (43, 36, 48, 38, 37, 36)
            ),
            f"{T_COMP} Not in the paper's table: adapow-d, d being halved every 100 rounds; cohort; and the "
            "weighted averages of appendix E: q=pK/m, whose sum is 1 on average only, and q∝p, normalised "
            f"over the chosen. {note}",
            known,
            cases=(Case(0.3, 400),),
            arms=(*TABLE, *BESIDE),
            early=(80, 160),
            timed=True,
        ),
        _experiment(
            images,
            "-alpha2",
            ", Dirichlet 2",
            "Table 2 (appendix G.2), Figures 4(a) and 5(a)",
            _printed(
                (135, 136, 82, 89, 99, 131), (63.5, 66.0, 73.8, 73.4, 72.5, 70.6), (42, 36, 46, 38, 36, 36)
            ),
            f"{T_COMP} {note}",
            cases=(Case(2.0, 160),),
            arms=(_RAND_10._replace(num_rounds=80), *TABLE[1:]),
            timed=True,
        ),
    )


EXPERIMENTS = (
    *_tables(
        _MNIST,
        {
            (arm.label, "accuracy at 400"): figure
            for arm, figure in (
                (_RAND, "88.4 ± 0.6"),
                (_POW, "89.2 ± 0.4"),
                (_CPOW, "89.0"),
                (_RPOW, "88.6"),
                (_AFL, "88.8"),
            )
        }
        | {
            (arm.label, "above rand's at 160"): figure
            for arm, figure in ((_POW, "1.5"), (_CPOW, "1.6"), (_RPOW, "1.2"), (_AFL, "0.8"))
        },
        "MNIST is easier: at round 80 it is where the paper's runs on Fashion-MNIST end.",
    ),
    _experiment(
        _MNIST,
        "-alpha.1",
        ", Dirichlet 0.1",
        "Table 1 with more heterogeneity than the paper's",
        "the gain over rand is there for small and large heterogeneity (section 5, of α = 2 and .3).",
        "",
        {
            (arm.label, "accuracy at 250"): figure
            for arm, figure in ((_RAND, "77.2"), (_POW, "80.7"), (_RPOW, "81.9"), (_AFL, "79.4"))
        },
        targets=(60.0, 75.0),
        cases=(Case(0.1, 250),),
        arms=(_RAND, _POW, _RPOW, _AFL),
    ),
    _experiment(
        _MNIST,
        "-c.1",
        ", ten clients a round",
        "Figure 12 (appendix G.5)",
        "with C = .1 and α = 2 pow-d is 15 points better than rand on Fashion-MNIST, 5 with α = .3.",
        "Here 10 clients a round, and d = 20, which the paper leaves open.",
        targets=(60.0, 80.0),
        cases=(Case(0.3, 80, name="α=.3"), Case(2.0, 80, name="α=2")),
        arms=MANY,
    ),
    _experiment(
        _MNIST,
        "-in-turns",
        ", clients that come and go",
        "Figure 9 (appendix G.3)",
        "on Fashion-MNIST pow-d is 10 points better than rand for α = 2 and for α = 3, rpow-d 5 and 10.",
        "Two halves of the clients take turns; of the one whose turn it is, each client is away with "
        "probability .1 (the paper: exactly a tenth of them).",
        targets=(60.0, 80.0),
        cases=(
            Case(2.0, 120, in_turns=True, name="α=2"),
            Case(3.0, 120, in_turns=True, name="α=3"),
        ),
        arms=(_RAND, _POW, _RPOW),
    ),
    _experiment(
        _MNIST,
        "-local",
        ", larger batches and more steps",
        "Figures 13 to 16 (appendix G.6)",
        "with b = 128 all is as with 64; with τ = 100 the gain stays for α = 2 and goes for α = .3.",
        "Here b and τ as the rows say.",
        targets=(60.0, 80.0),
        cases=(
            Case(0.3, 80, batch_size=128, name="b=128, α=.3"),
            Case(0.3, 80, local_steps=100, name="τ=100, α=.3"),
            Case(2.0, 80, local_steps=100, name="τ=100, α=2"),
        ),
        arms=(_RAND, _POW),
    ),
    *_tables(_FASHION, {}),
)
