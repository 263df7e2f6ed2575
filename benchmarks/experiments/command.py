"""Implements `cohort bench papers` and `cohort bench selectors`: runs experiments, writes their tables."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from benchmarks.experiments.figure import draw
from benchmarks.experiments.report import Experiment, Report, as_json, table
from benchmarks.experiments.running import missing_data, num_seeds, run_all
from benchmarks.results.machine import gpu
from benchmarks.results.recording import record_report
from tasks.datasets import DESCRIPTIONS


def list_experiments(known: Mapping[str, Experiment]) -> None:
    """Print a line about each experiment."""
    width = max(map(len, known))
    for each in known.values():
        needs = f"; needs {each.data}" if each.data else ""
        needs += "; needs a GPU" if each.gpu else ""
        typer.echo(f"{each.name:{width}}  {each.text.title} ({each.text.source}; {each.seeds} seeds{needs})")


def run_experiments(
    known: Mapping[str, Experiment],
    names: list[str] | None,
    seeds: int | None,
    jobs: int,
    data: Path | None,
    out: Path,
    quick: bool,
    fresh: bool,
    record: bool = False,
) -> None:
    """Run experiments, print their tables, and write tables, figures and numbers to a folder.

    Without `names`, all `known` experiments run, except those whose data file is missing and, on a machine
    without a GPU, those that need one. If `quick`, the output goes to the subfolder ``quick`` of `out`. If
    `record`, the data files of ``results/`` are written, too.
    """
    unknown = [name for name in names or () if name not in known]
    if unknown:
        _fail(f"experiment = {unknown[0]!r}: must be one of {', '.join(known)}")
    if data and not data.is_dir():
        _fail(f"data = {data}: must be a folder (--data, or COHORT_DATA)")
    wanted = [each for each in known.values() if not names or each.name in names]
    few = [each for each in wanted if record and (quick or num_seeds(each, seeds, quick) < each.seeds)]
    if few:
        _fail(f"record: {few[0].name} is recorded in its full form only, with {few[0].seeds} seeds or more")
    lacking = [each for each in wanted if missing_data(each, data)]
    if names and lacking:
        _fail(f"{lacking[0].name} needs {lacking[0].data}: {_where(lacking[0].data, data)}")
    for file in dict.fromkeys(each.data for each in lacking):
        skipped = ", ".join(each.name for each in lacking if each.data == file)
        typer.echo(f"skipped, since {file} is missing: {skipped}; {_where(file, data)}", err=True)
    if slow := [each for each in wanted if each.gpu and each not in lacking and not names and not gpu()]:
        typer.echo(f"skipped, since there is no GPU: {', '.join(each.name for each in slow)}", err=True)
    chosen = [each for each in wanted if each not in [*lacking, *slow]]

    out, start = out / "quick" if quick else out, time.monotonic()
    options = {"seeds": seeds, "jobs": jobs, "data": data, "quick": quick, "fresh": fresh}
    problems: list[str] = []
    try:
        shown = Console(stderr=True, highlight=False)
        for report in run_all(chosen, out / "seeds", console=shown, problems=problems, **options):  # type: ignore[arg-type]
            _write(report, out)
            if record:
                typer.echo(f"recorded: {record_report(report, data)}", err=True)
    except OSError as error:
        _fail(str(error))
    except (ModuleNotFoundError, RuntimeError) as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("stopped; the same command (without --fresh) goes on after the finished seeds", 130)
    typer.echo(
        f"{len(chosen)} experiments in {time.monotonic() - start:.0f} s; tables and figures: {out}", err=True
    )
    if problems:
        typer.echo("\n".join(problems), err=True)
        _fail(f"{len(problems)} seeds failed; the same command runs them again", 1)


def _where(file: str, data: Path | None) -> str:
    """Return where to put a missing data file, and the command that writes it."""
    where = f"put it into {data}" if data else "name its folder with --data or COHORT_DATA"
    name = Path(file).stem
    if name in DESCRIPTIONS and DESCRIPTIONS[name].hub is None:
        return (
            f"{where} (`python -m tasks.datasets {name} {file} FOLDER` writes it from LEAF's files in FOLDER)"
        )
    return f"{where} (`python -m tasks.datasets {name} {file}` writes it, given a network)"


def _write(report: Report, out: Path) -> None:
    """Print a report's table, and write the table, the numbers and the figure to the folder `out`."""
    text, name = table(report), report.experiment.name
    typer.echo(text)
    (out / f"{name}.md").write_text(text, encoding="utf-8")
    (out / f"{name}.json").write_text(json.dumps(as_json(report), indent=1, ensure_ascii=False), "utf-8")
    if report.outcomes[0].curves:
        try:
            draw(report, out / f"{name}.png")
        except ModuleNotFoundError as error:
            typer.echo(f"no figure: {error.name} is missing; pip install 'cohort-app[demo]'", err=True)


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(message, err=True)
    sys.exit(code)
