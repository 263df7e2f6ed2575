"""Compares the data files of results with the present code, and the pages with the data files."""

from __future__ import annotations

import dataclasses
import math
import random
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks import fresh
from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.running import Watcher, plan_all, run_jobs
from benchmarks.experiments.sources import digest_of, sources_of
from benchmarks.results.claim_list import CLAIMS
from benchmarks.results.claims import judge
from benchmarks.results.figures import figures
from benchmarks.results.files import FOLDER, Kept, Measured, Recorded, plain, read, write
from benchmarks.results.machine import commit, gpu, machine, restricted_to, same_arithmetic
from benchmarks.results.pages import PAGES, files_of, pages
from benchmarks.results.recording import digest_of_benchmark, measure, today
from deploy.flower.app_folder import CODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.experiments.report import Cell
    from benchmarks.results.files import Result, Value

DOCS = CODE / "docs"
RELATIVE = 1e-6
DEVIATIONS = 3.0
"""On another machine, a value may differ by `RELATIVE` of itself plus `DEVIATIONS` standard deviations of the
recorded seeds: another rounding can change a draw, and so a whole run."""


class Seed(NamedTuple):
    """A seed of a recorded experiment, and the CPU seconds that it took."""

    name: str
    seed: int
    seconds: float


def write_pages(results: Mapping[str, Result], docs: Path = DOCS) -> list[Path]:
    """Write all pages and figures that do not match the data files, and return their paths."""
    written = []
    for file, text in pages(results).items():
        path = docs / file
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    folder = docs / "results"
    drawn = figures(results, judge(CLAIMS, results))
    return written + [each.write(folder) for each in drawn if not each.is_current(folder)]


def wrong_pages(results: Mapping[str, Result], docs: Path = DOCS) -> list[str]:
    """Return which pages and figures differ from the data files, and which data files are on no page."""
    found = []
    for file, text in pages(results).items():
        path = docs / file
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found.append(f"docs/{file} differs from the data files: `make results` writes it")
    found += [
        f"docs/results/{each.file} differs from the data files: `make results` draws it"
        for each in figures(results, judge(CLAIMS, results))
        if not each.is_current(docs / "results")
    ]
    shown = {name for page in PAGES for name in files_of(page, results)}
    return found + [f"results/{name}.json is on no page" for name in results if name not in shown]


def outdated(results: Mapping[str, Result]) -> list[Recorded | Measured]:
    """Return the results whose sources have changed since they were made, the cheapest to renew first.

    The results that `need_gpu` returns are left out.
    """
    found: list[tuple[float, Recorded | Measured]] = []
    unchecked = need_gpu(results)
    for each in results.values():
        if isinstance(each, Recorded) and each.name in EXPERIMENTS and each not in unchecked:
            if each.sources != digest_of(EXPERIMENTS[each.name]):
                found.append((min(each.seconds), each))
        elif isinstance(each, Measured) and each.sources != digest_of_benchmark(each.name):
            found.append((each.seconds, each))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def need_gpu(results: Mapping[str, Result]) -> list[Recorded]:
    """Return the results that only a machine with a GPU can check, if this machine has none."""
    return [
        each
        for each in results.values()
        if isinstance(each, Recorded)
        and each.name in EXPERIMENTS
        and EXPERIMENTS[each.name].gpu
        and not gpu()
    ]


def kept(results: Mapping[str, Result]) -> list[Kept]:
    """Return the kept results, which were measured before results were recorded."""
    return [each for each in results.values() if isinstance(each, Kept)]


def sample(results: Mapping[str, Result], seed: int, budget: float, data: Path | None) -> list[Seed]:
    """Draw random seeds of recorded experiments, which together took at most `budget` CPU seconds.

    Experiments whose file of samples is not in the folder `data` are left out.
    """
    seeds = [
        Seed(each.name, number, seconds)
        for each in results.values()
        if isinstance(each, Recorded) and _has_data(each, data)
        for number, seconds in zip(each.seeds, each.seconds, strict=True)
        if seconds <= budget
    ]
    random.Random(seed).shuffle(seeds)
    chosen: list[Seed] = []
    for each in seeds:
        if sum(there.seconds for there in chosen) + each.seconds <= budget:
            chosen.append(each)
    return chosen


class Rerun(NamedTuple):
    """A seed that was run again."""

    values: dict[Cell, Value] | None
    """The value of each cell; None if the seed did not run."""
    reason: str
    """Why the seed did not run, "" if it ran."""
    machine: dict[str, Any]
    """The machine, with the instructions that the seed used, see `machine.machine`."""


def rerun(seeds: Sequence[tuple[Recorded, int]], data: Path | None) -> list[Rerun]:
    """Rerun seeds with the present code, with the vector instructions of the recording machine if possible.

    Parameters
    ----------
    seeds : sequence of (Recorded, int)
        Results, and one of the seeds of each.
    data : Path or None
        Folder with the files of samples that experiments read.
    """
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for position, (result, _) in enumerate(seeds):
        alike.setdefault(tuple(restricted_to(result.machine).items()), []).append(position)
    found: dict[int, Rerun] = {}
    for restricted, positions in alike.items():  # one process for all seeds with the same instructions
        given = [seeds[each] for each in positions]
        again = (
            fresh.call_with(dict(restricted), _rerun_all, given, data)
            if restricted
            else _rerun_all(given, data)
        )
        found |= dict(zip(positions, again, strict=True))
    return [found[position] for position in range(len(seeds))]


def _rerun_all(seeds: Sequence[tuple[Recorded, int]], data: Path | None) -> list[Rerun]:
    return [_rerun(result, seed, data) for result, seed in seeds]


def _rerun(result: Recorded, seed: int, data: Path | None) -> Rerun:
    experiment = EXPERIMENTS[result.name]
    with tempfile.TemporaryDirectory() as folder:
        job = plan_all([experiment], Path(folder), seeds=seed + 1, data=data)[experiment.name][seed]
        if job.digest != result.data:
            return Rerun(None, f"{experiment.data} is not the file of the recorded results", machine())
        reasons: list[str] = []
        for _ in run_jobs([job], 1, _Failures(reasons)):
            pass
        done = job.read()
    if done is None:
        return Rerun(None, f"failed: {'; '.join(reasons)}", machine())
    return Rerun({cell: plain(value) for cell, value in done.outcome.cells.items()}, "", machine())


def differences(result: Recorded, seed: int, again: Rerun) -> list[str]:
    """Return how the values of a rerun seed differ from the recorded ones.

    If both were computed with the same arithmetic (`machine.ARITHMETIC`), each value must be equal, bit for
    bit. Otherwise see `RELATIVE` and `DEVIATIONS`.
    """
    if again.values is None:
        return [f"{result.name}, seed {seed}: {again.reason}"]
    now = again.values
    exact = same_arithmetic(again.machine, result.machine)
    return [
        f"{result.name}, seed {seed}, {' | '.join(cell)}: recorded {before}, now {now.get(cell)}"
        for cell, before in result.outcome(seed).items()
        if cell not in now
        or not _agree(before, now[cell], 0.0 if exact else _tolerance(result, cell, before))
    ] + [
        f"{result.name}, seed {seed}, {' | '.join(cell)}: not recorded"
        for cell in now
        if cell not in result.outcome(seed)
    ]


def renew_benchmark(result: Measured, folder: Path = FOLDER) -> list[str]:
    """Rerun a benchmark of `recording.REPEATABLE` as a whole; if its output is equal, write the new digest.

    If the output is equal, returns an empty list. If it differs, returns a list with one text that says so,
    and leaves the data file as it is.
    """
    words = shlex.split(result.command)
    with tempfile.TemporaryDirectory() as other:
        measure(words[words.index("--measure") + 1], Path(other), restricted_to(result.machine))
        new = read(Path(other))[result.name]
    assert isinstance(new, Measured)
    if new.output != result.output:
        return [f"{result.name}: its output differs"]
    note = {
        "measured": new.measured,
        "commit": new.commit,
        "before": result.sources,
        "seed": "all",
        "equal": "bit for bit",
    }
    write(dataclasses.replace(result, sources=new.sources, renewed=[*result.renewed, note]), folder)
    return []


def renew(result: Recorded, data: Path | None, folder: Path = FOLDER) -> list[str]:
    """Rerun the cheapest seed of an experiment whose sources have changed; if equal, write the new digest.

    Returns the differences, see `differences`. If there are any, the data file stays as it is, and the
    experiment must be recorded again.
    """
    experiment = EXPERIMENTS[result.name]
    at = int(np.argmin(result.seconds))
    (again,) = rerun([(result, result.seeds[at])], data)
    found = differences(result, result.seeds[at], again)
    if not found:
        exact = same_arithmetic(again.machine, result.machine)
        note = {
            "measured": today(),
            "commit": commit(sources_of(experiment)),
            "before": result.sources,
            "seed": result.seeds[at],
            "equal": "bit for bit" if exact else "within the tolerance",
        }
        write(
            dataclasses.replace(result, sources=digest_of(experiment), renewed=[*result.renewed, note]),
            folder,
        )
    return found


class _Failures(Watcher):
    """Collects the reasons for which seeds failed."""

    def __init__(self, reasons: list[str]) -> None:
        self._reasons = reasons

    def failed(self, job: object, reason: str) -> None:
        self._reasons.append(reason)


def _has_data(result: Recorded, data: Path | None) -> bool:
    if result.name not in EXPERIMENTS:
        return False
    file = EXPERIMENTS[result.name].data
    return not file or bool(data and (data / file).is_file())


def _agree(one: Value, other: Value, tolerance: float) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return one == other or abs(one - other) <= tolerance
    # With another machine's rounding, a seed may reach a goal that it did not reach in the record, or the
    # other way round: one of the two is then the text "inf", or None for NaN.
    return one == other or tolerance > 0


def _tolerance(result: Recorded, cell: Cell, value: Value) -> float:
    values: Sequence[float] = [each for each in result.values(*cell) if math.isfinite(each)]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    size = abs(value) if isinstance(value, float | int) else 0.0
    return max(RELATIVE * max(size, 1e-9) + DEVIATIONS * spread, 1e-12)
