"""Ablations: what each part of a federation's settings does to what the designs of draws gain.

In three, clients train a perceptron on MNIST with labels by Dirichlet(0.1), as in
`benchmarks.experiments.real_tasks`: probabilities x designs, local steps x designs, and the share of clients
that train x designs. In the fourth, they train a CNN on CIFAR-10: learning rates x methods. In the fifth,
buffered rounds of slow clients on digits, as in `benchmarks.time_to_accuracy`: the number of busy clients x
the size of the buffer, for FedBuff and for our unbiased form.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.experiments.methods import Method
from benchmarks.experiments.real_tasks import (
    EVERY,
    LAST,
    METHODS,
    SETTINGS,
    WINDOW,
    Setting,
    federation_of,
    train,
)
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from benchmarks.time_to_accuracy import federation as slow
from benchmarks.time_to_accuracy.simulated import moving_mean
from simulation.simulator import Simulator
from strategies.options import Buffered, Faults

DESIGNS = ("independent", "systematic", "balanced")
LEARNERS = ("md", "forecast", "avare")
STEPS = (3, 10, 40)
CLIENTS = (20, 100, 300)  # M; 10 of them train in a round
LEVELS = (85, 90)  # accuracy in %
MNIST = Setting("mnist-mlp", "dirichlet:0.1", 0.2, 10, 120, best=93)
CIFAR = "real-cifar-.1"
RATED, FACTORS = ("fedavg", "md", "md, balanced"), (0.5, 1.0, 2.0)
BUSY, SIZES = (6, 12, 24), (1, 3, 6)
BUFFERED = {
    "fedbuff": ("uniform", 0.5, False),
    "buffered-md": ("md", 0.0, True),
    "buffered-md, power 0.5": ("md", 0.5, True),
}
"""Name of a buffered method -> its selector, its staleness power, and whether it counts busy clients."""
BUDGET = 800.0  # simulated seconds


def learners(seed: int, path: Path, quick: bool = False) -> Outcome:
    """Train with every selector of `LEARNERS` and every design; `quick` trains for a tenth of the rounds."""
    rows = {(name, design): MNIST for name in LEARNERS for design in DESIGNS}
    return _on_mnist(rows, seed, path, quick)


def local_steps(seed: int, path: Path, quick: bool = False) -> Outcome:
    """Train with `md`, every design, and every number of local steps in `STEPS`."""
    rows = {
        (f"{steps} steps", design): replace(MNIST, local_steps=steps) for steps in STEPS for design in DESIGNS
    }
    return _on_mnist(rows, seed, path, quick)


def share(seed: int, path: Path, quick: bool = False) -> Outcome:
    """Train with `md`, every design, and 10 of every number of clients in `CLIENTS`."""
    rows = {
        (f"10 of {number}", design): replace(MNIST, num_clients=number)
        for number in CLIENTS
        for design in DESIGNS
    }
    return _on_mnist(rows, seed, path, quick)


def _on_mnist(rows: dict[tuple[str, str], Setting], seed: int, path: Path, quick: bool) -> Outcome:
    """Train in each row's setting; a row's name is a selector or a setting of `md`, and a design."""
    cells: dict[Cell, float] = {}
    of_size = {setting.num_clients: setting for setting in rows.values()}
    made = {number: federation_of(setting, seed, path) for number, setting in of_size.items()}
    for (name, design), setting in rows.items():
        setting = replace(setting, num_rounds=setting.num_rounds // 10) if quick else setting
        method = Method(name if name in LEARNERS else "md", {"design": design})
        track = train(setting, made[setting.num_clients], method, seed)
        smooth = np.convolve(track.accuracy, np.full(WINDOW, 1 / WINDOW), "valid")
        row = f"{name}, {design}"
        rounds = EVERY * np.arange(WINDOW, track.accuracy.size + 1.0)
        for level in LEVELS:
            cells[row, f"rounds to {level} %"] = Curve(rounds, smooth).first(smooth >= level)
        cells[row, "final accuracy, %"] = float(track.accuracy[-LAST:].mean())
        cells[row, "wobble, points"] = float(np.sqrt((np.diff(track.accuracy[-LAST:]) ** 2).mean() / 2))
        cells[row, "worst tenth, %"] = track.worst
        cells[row, "error of the aggregate"] = track.error
    return Outcome(cells)


def rates(seed: int, path: Path, quick: bool = False) -> Outcome:
    """Train on CIFAR-10 with every method of `RATED`, with half and twice the rate of `real_tasks`, too."""
    setting, cells = SETTINGS[CIFAR], dict[Cell, float]()
    setting = replace(setting, num_rounds=setting.num_rounds // 10) if quick else setting
    federation = federation_of(setting, seed, path)
    for name in RATED:
        for factor in FACTORS:
            rate = factor * setting.learning_rate
            track = train(replace(setting, learning_rate=rate), federation, METHODS[name], seed)
            smooth = np.convolve(track.accuracy, np.full(WINDOW, 1 / WINDOW), "valid")
            curve = Curve(EVERY * np.arange(WINDOW, track.accuracy.size + 1.0), smooth)
            row = f"{name}, rate {rate:g}"
            cells[row, "rounds to 90 % of the best"] = curve.first(smooth >= 0.9 * setting.best)
            cells[row, "final accuracy, %"] = float(track.accuracy[-LAST:].mean())
    return Outcome(cells)


def buffers(seed: int, quick: bool = False) -> Outcome:
    """Train in buffered rounds until `BUDGET` seconds have passed; `quick` simulates a tenth of the time."""
    federation = slow.Federation(slow.Setting(), seed)
    cells: dict[Cell, float] = {}
    for busy in BUSY:
        for size in SIZES:
            for name, (selector, power, fair) in BUFFERED.items():
                mode = Buffered(concurrency=busy, size=size, staleness_power=power, count_busy=fair)
                simulator = Simulator(
                    federation.data,
                    federation.kernel,
                    selector,
                    clients_per_round=busy,
                    num_rounds=1_000,
                    learning_rate=federation.learning_rate,
                    batch_size=slow.BATCH_SIZE,
                    local_steps=slow.STEPS,
                    seed=seed,
                    response_times=federation.times,
                    mode=mode,
                    faults=Faults(guard=False, silence=False),
                )
                seconds, accuracy, trained = [0.0], [0.0], 0
                while simulator.seconds < (BUDGET / 10 if quick else BUDGET):
                    trained += simulator.step().selection.clients.size
                    seconds.append(simulator.seconds)
                    accuracy.append(100 * simulator.evaluate(federation.test).accuracy)
                smooth, row = moving_mean(accuracy), f"{name}, {busy} busy, buffer {size}"
                for level in LEVELS:
                    cells[row, f"s to {level} %"] = Curve(np.array(seconds), smooth).first(smooth >= level)
                cells[row, "final accuracy, %"] = float(smooth[-1])
                cells[row, "updates a second"] = trained / simulator.seconds
    return Outcome(cells)


EXPERIMENTS = (
    *(
        Experiment(f"ablation-{name}", run, seeds=10, digits=2, data="mnist.npz")
        for name, run in (("learners", learners), ("steps", local_steps), ("share", share))
    ),
    Experiment("ablation-rates", rates, digits=2, data="cifar10.npz"),
    Experiment("ablation-buffers", buffers, seeds=10, digits=1),
)
