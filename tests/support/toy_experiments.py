"""Experiments without work, controlled by files in a folder: they test how experiments are run."""

import os
import signal
import time
from functools import partial

import numpy as np

from benchmarks.experiments.report import Curve, Experiment, Outcome


def toy(seed, folder, quick=False):
    """Log the seed; fail, get killed or wait if the folder has the file for it."""
    with (folder / "log").open("a") as log:
        log.write(f"{seed}{'q' if quick else ''}\n")
    if (folder / f"fail-{seed}").exists():
        raise ValueError(f"seed {seed} is a bad one")
    if (folder / f"kill-{seed}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    while (folder / f"wait-{seed}").exists():
        time.sleep(0.02)
    x = np.arange(3.0)
    return Outcome({("md", "loss"): 1 / (3 + seed)}, {"a panel": {"md": Curve(x, x + seed)}})


def seeds_run(folder):
    """Return the seeds that have run, sorted; quick ones end in q."""
    return sorted((folder / "log").read_text().split())


def toy_with_data(seed, data, folder):
    return toy(seed + int(data.read_text()), folder)


def experiment(folder, **settings):
    return Experiment("toy", partial(toy, folder=folder), **settings)
