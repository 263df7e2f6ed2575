"""One trial of a sweep, in a worker: a process of this machine, or of a Ray cluster."""

import math
import shutil
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from deploy.engines import batched
from deploy.runs.trial_statistics import summarise
from deploy.sweeps import trial_digests
from deploy.sweeps.jobs import Ended, finish, prepare
from server.history import FILE_NAME, RunHistory
from server.settings import CHECKPOINTS
from strategies import extensions

RESULT = "result.json"  # the file in a trial's folder with the trial's result; written last, and atomically


class Job(NamedTuple):
    """A trial to train."""

    key: str
    """The digest of the trial's result, see `trial_digests.of_trial`."""
    config: dict[str, Any]
    """The settings that differ from the app's defaults. ``output-dir`` is the trial's folder."""
    code: str
    """The digest of the code with which the sweep was planned, see `trial_digests.of_code`."""

    @property
    def file(self) -> Path:
        """The file of the result."""
        return Path(self.config["output-dir"]) / RESULT


class Shipped(NamedTuple):
    """The files that the user imports, for a machine that may not have them."""

    modules: list[str]
    """The files or names of the modules, as for `extensions.name_modules`."""
    files: dict[str, bytes]
    """The content of each file, by path."""


def execute(job: Job) -> Ended:
    """Train a trial, or continue its training. An error is part of its end."""
    try:
        if trial_digests.of_code() != job.code:
            raise RuntimeError(
                "the sources or packages in this process differ from those with which the sweep was planned; "
                "start the sweep again, and give all machines the same installation"
            )
        return finish(job, _train(job))
    except Exception as error:
        return Ended(job.key, None, f"{type(error).__name__}: {error}")


def execute_elsewhere(job: Job, shipped: Shipped) -> Ended:
    """Train a trial on a machine that need not have the sweep's folder or the user's modules."""
    try:
        _unpack(shipped)
        prepare()
    except Exception as error:
        return Ended(job.key, None, f"{type(error).__name__}: {error}")
    with tempfile.TemporaryDirectory(prefix="cohort-sweep-") as folder:
        trial = Path(folder) / "trial"
        end = execute(job._replace(config={**job.config, "output-dir": str(trial)}))
        files = {
            str(path.relative_to(trial)): path.read_bytes() for path in trial.rglob("*") if path.is_file()
        }
        return end._replace(files=files)


def ship() -> Shipped:
    """Return the files that the user imports in this process."""
    return Shipped(extensions.named(), {str(path): path.read_bytes() for path in extensions.files()})


@cache
def _place() -> Path:
    return Path(tempfile.mkdtemp(prefix="cohort-imports-"))


def _unpack(shipped: Shipped) -> None:
    """Write the shipped files into a folder of this process, and name them as the modules to import."""
    if not shipped.modules or extensions.named():
        return
    place = _place()
    for path, content in shipped.files.items():
        target = place / Path(path).relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    files = [each for each in shipped.modules if each.endswith(".py")]
    modules = [each for each in shipped.modules if not each.endswith(".py")]
    for name in modules:  # Python must find the folder that contains the module or its package
        parts = name.split(".")
        for path in shipped.files:
            found = Path(path).parts
            if parts[0] in found or f"{parts[0]}.py" in found:
                at = found.index(parts[0] if parts[0] in found else f"{parts[0]}.py")
                sys.path.append(str(place.joinpath(*found[1:at])))
                break
    extensions.name_modules([*(str(place / Path(each).relative_to("/")) for each in files), *modules])


def _train(job: Job) -> dict[str, Any]:
    folder = job.file.parent
    began = time.monotonic()
    if any((folder / CHECKPOINTS).glob("round-*.npz")):
        try:
            batched.run({**job.config, "resume": True})
        except ValueError:  # for example, the first line of its history is damaged
            shutil.rmtree(folder)
            batched.run(job.config)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        batched.run(job.config)
    history = RunHistory(folder / FILE_NAME)
    history.read()
    last, found = history.rounds[-1], summarise(history)
    result: dict[str, Any] = {
        "accuracy": found.test_accuracy,
        "loss": found.test_loss,
        "last_accuracy": last["test_accuracy"],
        "last_loss": last["test_loss"],
        "train_loss": found.train_loss,
        "rounds": last["round"],
        "clients": found.distinct,
        "failures": found.failures,
        "seconds": time.monotonic() - began,
        "digest": job.key,
    }
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    # JSON has no NaN.
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in result.items()}
