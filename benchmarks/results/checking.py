"""Compares the data files of results with the present code, and the pages with the data files."""

import dataclasses
import math
import random
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import fresh
from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.report import Cell, Experiment, Value, plain
from benchmarks.experiments.running import data_file, digest_of, missing_data, run, sources_of
from benchmarks.results.claims import judge, read_claims
from benchmarks.results.figures import figures
from benchmarks.results.files import FOLDER, Measured, Recorded, Result, read, write
from benchmarks.results.machine import commit, gpu, machine, restricted_to, same_arithmetic
from benchmarks.results.pages import DOCS, pages, shown
from benchmarks.results.recording import digest_of_benchmark, measure, today

RELATIVE = 1e-6
DEVIATIONS = 3.0
"""On another machine, a value may differ by `RELATIVE` of itself plus `DEVIATIONS` standard deviations of the
recorded seeds: another rounding can change a draw, and so a whole run."""


def write_pages(results: Mapping[str, Result], docs: Path = DOCS) -> list[Path]:
    """Fill the pages and draw the figures that do not match the data files, and return their paths."""
    written = []
    for page, (before, after) in pages(results, docs).items():
        if after != before:
            page.write_text(after, encoding="utf-8")
            written.append(page)
    folder = docs / "results"
    drawn = figures(results, judge(read_claims(), results))
    return written + [each.write(folder) for each in drawn if not each.is_current(folder)]


def wrong_pages(results: Mapping[str, Result], docs: Path = DOCS) -> list[str]:
    """Return which pages and figures differ from the data files, and which data files are on no page."""
    texts = pages(results, docs)
    wrong = [str(page.relative_to(docs)) for page, (before, after) in texts.items() if before != after]
    wrong += [
        f"results/{each.file}"
        for each in figures(results, judge(read_claims(), results))
        if not each.is_current(docs / "results")
    ]
    named = shown([before for before, _ in texts.values()])
    return [f"docs/{name} differs from the data files: `make results` mends it" for name in wrong] + [
        f"results/{name}.json is on no page" for name in results if name not in named
    ]


def outdated(results: Mapping[str, Result]) -> list[Recorded | Measured]:
    """Return the results whose sources have changed, the cheapest to renew first; without `need_gpu`'s."""
    found: list[tuple[float, Recorded | Measured]] = []
    unchecked = need_gpu(results)
    for each in results.values():
        if isinstance(each, Measured) and each.sources != digest_of_benchmark(each.name):
            found.append((each.seconds, each))
        elif isinstance(each, Recorded) and each.name in EXPERIMENTS and each not in unchecked:
            found += [(min(each.seconds), each)] * (each.sources != digest_of(EXPERIMENTS[each.name]))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def need_gpu(results: Mapping[str, Result]) -> list[Recorded]:
    """Return the results that only a machine with a GPU can check, if this machine has none."""
    recorded = [each for each in results.values() if isinstance(each, Recorded) and each.name in EXPERIMENTS]
    return [each for each in recorded if EXPERIMENTS[each.name].gpu and not gpu()]


def sample(
    results: Mapping[str, Result], seed: int, budget: float, data: Path | None
) -> list[tuple[Recorded, int]]:
    """Draw random seeds of experiments whose data are there, recorded in `budget` CPU seconds at most."""
    seeds = [
        (each, number, seconds)
        for each in results.values()
        if isinstance(each, Recorded) and each.name in EXPERIMENTS
        if not missing_data(EXPERIMENTS[each.name], data)
        for number, seconds in zip(each.seeds, each.seconds, strict=True)
        if seconds <= budget
    ]
    random.Random(seed).shuffle(seeds)
    chosen, spent = [], 0.0
    for result, number, seconds in seeds:
        if spent + seconds <= budget:
            spent += seconds
            chosen.append((result, number))
    return chosen


class Rerun(NamedTuple):
    """A seed that was run again."""

    values: dict[Cell, Value] | None  # None if the seed did not run
    reason: str  # why it did not run
    machine: dict[str, Any]  # with the instructions that the seed used, see `machine.machine`


def rerun(seeds: Sequence[tuple[Recorded, int]], data: Path | None) -> list[Rerun]:
    """Rerun seeds of results, with the vector instructions of the recording machine if possible."""
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for position, (result, _) in enumerate(seeds):
        alike.setdefault(tuple(restricted_to(result.machine).items()), []).append(position)
    found: dict[int, Rerun] = {}
    for restricted, positions in alike.items():  # one process for all seeds with the same instructions
        given = [
            (EXPERIMENTS[result.name], result.data, seed)
            for result, seed in map(seeds.__getitem__, positions)
        ]
        again = fresh.call_with(dict(restricted), rerun_here, given, data)
        found |= dict(zip(positions, again, strict=True))
    return [found[position] for position in range(len(seeds))]


def rerun_here(seeds: Sequence[tuple[Experiment, str, int]], data: Path | None) -> list[Rerun]:
    """Rerun seeds in this process. Each is (experiment, SHA-256 of the recorded results' data, seed)."""
    found = []
    for experiment, recorded_data, seed in seeds:
        values, reason = None, ""
        try:
            file, sha256 = data_file(experiment, data)
            if sha256 != recorded_data:
                reason = f"{experiment.data} is not the file of the recorded results"
            else:
                values = {cell: plain(value) for cell, value in run(experiment, seed, file).cells.items()}
        except Exception as error:
            reason = f"failed: {type(error).__name__}: {error}"
        found.append(Rerun(values, reason, machine()))
    return found


def differences(result: Recorded, seed: int, again: Rerun) -> list[str]:
    """Return how the values of a rerun seed differ from the recorded ones.

    With the same arithmetic (`machine.ARITHMETIC`) they must be equal, bit for bit; else see `RELATIVE`.
    """
    if again.values is None:
        return [f"{result.name}, seed {seed}: {again.reason}"]
    now, before = again.values, result.outcome(seed)
    exact = same_arithmetic(again.machine, result.machine)
    return [
        f"{result.name}, seed {seed}, {' | '.join(cell)}: recorded {value}, now {now.get(cell)}"
        for cell, value in before.items()
        if cell not in now or not _agree(value, now[cell], 0.0 if exact else _tolerance(result, cell, value))
    ] + [
        f"{result.name}, seed {seed}, {' | '.join(cell)}: not recorded" for cell in now if cell not in before
    ]


def renew(result: Recorded | Measured, data: Path | None, folder: Path = FOLDER) -> list[str]:
    """Rerun a part of an outdated result; write the new digest if the values are equal. Return differences.

    The part is the cheapest seed of an experiment, or a whole benchmark of `recording.REPEATABLE`.
    """
    part: int | str = "all"
    exact = True
    if isinstance(result, Measured):
        words = shlex.split(result.command)
        with tempfile.TemporaryDirectory() as other:
            measure(words[words.index("--measure") + 1], Path(other), restricted_to(result.machine))
            new = read(Path(other))[result.name]
        assert isinstance(new, Measured)
        found = [] if new.output == result.output else [f"{result.name}: its output differs"]
        facts = {"commit": new.commit, "sources": new.sources}
    else:
        part = result.seeds[int(np.argmin(result.seconds))]
        (again,) = rerun([(result, part)], data)
        found = differences(result, part, again)
        exact = same_arithmetic(again.machine, result.machine)
        experiment = EXPERIMENTS[result.name]
        facts = {"commit": commit(sources_of(experiment)), "sources": digest_of(experiment)}
    if not found:
        note = {"measured": today(), "commit": facts["commit"], "before": result.sources, "seed": part}
        note["equal"] = "bit for bit" if exact else "within the tolerance"
        renewed = [*result.renewed, note]
        write(dataclasses.replace(result, sources=facts["sources"], renewed=renewed), folder)
    return found


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
