"""Implements `cohort bench results`: writes the pages; checks, renews or measures the results."""

import random
import sys
from pathlib import Path

import typer

from benchmarks.results.checking import (
    DEVIATIONS,
    RELATIVE,
    differences,
    need_gpu,
    outdated,
    renew,
    rerun,
    sample,
    write_pages,
    wrong_pages,
)
from benchmarks.results.files import Recorded, read
from benchmarks.results.recording import measure


def write_all() -> None:
    """Fill the pages and draw the figures, and print the paths of those that changed."""
    for path in write_pages(read()):
        typer.echo(path)


def measure_one(command: str) -> None:
    """Run a benchmark, and write its data file and the pages."""
    try:
        typer.echo(measure(command))
    except ValueError as error:
        typer.echo(str(error), err=True)
        sys.exit(1)
    write_all()


def renew_all(names: list[str] | None, data: Path | None) -> None:
    """Renew the outdated results, the cheapest first; with `names`, only these.

    Ends with code 2 if a name has no result, and 1 if a value differs, or data are missing.
    """
    results = read()
    for name in names or ():
        if name not in results:
            typer.echo(f"experiment = {name!r}: has no recorded results", err=True)
            sys.exit(2)
    failed = 0
    for result in outdated(results):
        if names and result.name not in names:
            continue
        try:
            found = renew(result, data)
        except (FileNotFoundError, ValueError) as error:
            found = [str(error)]
        if found:
            failed += 1
            typer.echo("\n".join(found[:5]))
            typer.echo(f"{result.name}: not renewed; to record it again: {result.command}")
        else:
            same = "one seed is" if isinstance(result, Recorded) else "its output is"
            typer.echo(f"{result.name}: {same} equal, renewed")
    write_all()
    sys.exit(failed > 0)


def check(seed: int | None, budget: float, data: Path | None) -> None:
    """Print whether pages, digests of sources and a sample of seeds agree with the code.

    The seeds of the sample (random, unless `seed` is given) took at most `budget` CPU seconds together.
    Experiments whose file is not in the folder `data` are left out.
    """
    results = read()
    problems, changed, unchecked = wrong_pages(results), outdated(results), need_gpu(results)
    problems += [
        f"{each.name}: its sources have changed since it was recorded "
        f"(`cohort bench results --renew {each.name}`)"
        for each in changed
    ]
    recorded = {name: each for name, each in results.items() if isinstance(each, Recorded)}
    typer.echo(f"{len(recorded)} experiments recorded, {len(changed)} of them outdated")
    if unchecked:
        typer.echo("not checked, since there is no GPU: " + ", ".join(each.name for each in unchecked))
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    current = {name: each for name, each in recorded.items() if each not in [*changed, *unchecked]}
    seeds = sample(current, seed, budget, data)
    how = f"bit for bit; if another machine recorded it, within {RELATIVE:g} + {DEVIATIONS:g} deviations"
    typer.echo(f"sample {seed} (--sample {seed} repeats it): {len(seeds)} seeds rerun, compared {how}")
    for (result, number), again in zip(seeds, rerun(seeds, data), strict=True):
        found = differences(result, number, again)
        typer.echo(f"  {result.name}, seed {number}: {'differs' if found else 'equal'}")
        problems += found
    for problem in problems:
        typer.echo(problem, err=True)
    sys.exit(bool(problems))
