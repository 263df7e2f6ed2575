"""`cohort bench`: measure what this project claims."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.experiments.report import Experiment, Report

DATA_VARIABLE = "COHORT_DATA"

bench = typer.Typer(no_args_is_help=True, help="Measure what this project claims.")

Names = Annotated[list[str] | None, typer.Argument(show_default=False)]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds of each (default: its own few).")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")]
Data = Annotated[
    Path | None,
    typer.Option(
        envvar=DATA_VARIABLE,
        file_okay=False,
        help="Folder with mnist.npz and other data, for the experiments that need it.",
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for the tables, the figures and every seed's numbers.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="A small form of each, one seed in about a minute; kept in OUT/quick.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run again what is there from an earlier run.")]
ListThem = Annotated[bool, typer.Option("--list", help="Say what there is, and stop.")]


@bench.callback()
def _bench() -> None:
    """Measure what this project claims."""


def _command(name: str, which: str, about: str) -> None:
    """Add a command that runs a registry of experiments, called ``which`` in `benchmarks.experiments`."""

    def command(
        experiments: Names = None,
        seeds: Seeds = None,
        jobs: Jobs = 1,
        data: Data = None,
        out: Out = Path("runs/papers"),
        quick: Quick = False,
        fresh: Fresh = False,
        list_them: ListThem = False,
    ) -> None:
        # Late: a device that joins has no use for them.
        known = getattr(import_module("benchmarks.experiments"), which)
        if list_them:
            _list(known)
        else:
            _run(known, experiments, seeds, jobs, data, out, quick, fresh)

    bench.command(name, help=about)(command)


# Which ones are run stands here, since click >= 8.3 and Typer between them lose the help of an argument.
_command(
    "papers",
    "EXPERIMENTS",
    "Run the papers' experiments, all or those named (see --list); what an earlier run has finished is not "
    "run again, so after Ctrl-C the same command goes on.",
)
_command(
    "selectors",
    "SELECTION",
    "Run those of the papers' experiments that are about selection alone: no networks are trained.",
)


def _list(known: Mapping[str, Experiment]) -> None:
    width = max(map(len, known))
    for each in known.values():
        polls_for = f"; needs {each.data}" if each.data else ""
        typer.echo(f"{each.name:{width}}  {each.title} ({each.source}; {each.seeds} seeds{polls_for})")


def _run(
    known: Mapping[str, Experiment],
    names: list[str] | None,
    seeds: int | None,
    jobs: int,
    data: Path | None,
    out: Path,
    quick: bool,
    fresh: bool,
) -> None:
    """Run experiments, print their tables, and leave tables, figures and numbers in the folder."""
    from rich.console import Console

    from benchmarks.experiments.progress import Bars, Lines
    from benchmarks.experiments.running import missing_data, num_seeds, run_all

    unknown = [name for name in names or () if name not in known]
    if unknown:
        _fail(f"experiment = {unknown[0]!r}: must be one of {', '.join(known)}")
    if data and not data.is_dir():
        _fail(f"data = {data}: must be a folder (--data, or {DATA_VARIABLE})")
    # What was asked for by name must be possible; "all" is what can be run with what is there.
    asked = [each for each in known.values() if not names or each.name in names]
    lacking = [each for each in asked if missing_data(each, data)]
    if names and lacking:
        _fail(f"{lacking[0].name} needs {lacking[0].data}: {_where(lacking[0].data, data)}")
    for file in dict.fromkeys(each.data for each in lacking):
        left = ", ".join(each.name for each in lacking if each.data == file)
        typer.echo(f"left out, since they need {file}: {left}; {_where(file, data)}", err=True)
    chosen = [each for each in asked if each not in lacking]

    out, start = out / "quick" if quick else out, time.monotonic()
    console = Console(stderr=True)
    totals = {each.name: num_seeds(each, seeds, quick) for each in chosen}
    with (Bars if console.is_terminal else Lines)(console, totals) as watcher:
        try:
            for report in run_all(
                chosen,
                out / "seeds",
                seeds=seeds,
                jobs=jobs,
                data=data,
                quick=quick,
                fresh=fresh,
                watcher=watcher,
            ):
                _leave(report, out)
        except OSError as error:
            _fail(str(error))
        except KeyboardInterrupt:
            typer.echo("stopped; the same command goes on after the seeds that are finished", err=True)
            sys.exit(130)
    typer.echo(
        f"{len(chosen)} experiments in {time.monotonic() - start:.0f} s; tables and figures: {out}", err=True
    )
    if watcher.failures:
        _fail(f"{watcher.failures} seeds failed; the same command runs them again", 1)


def _where(file: str, data: Path | None) -> str:
    """Say where a file of data may be put, and how it is made."""
    where = f"put it into {data}" if data else f"name its folder with --data or {DATA_VARIABLE}"
    return f"{where} (`python -m tasks.datasets {Path(file).stem} {file}` writes it, given a network)"


def _leave(report: Report, out: Path) -> None:
    from benchmarks.experiments.figure import draw
    from benchmarks.experiments.report import as_json, table

    text, name = table(report), report.experiment.name
    typer.echo(text)
    (out / f"{name}.md").write_text(text, encoding="utf-8")
    (out / f"{name}.json").write_text(as_json(report), encoding="utf-8")
    if report.outcomes[0].curves:
        try:
            draw(report, out / f"{name}.png")
        except ModuleNotFoundError as error:
            typer.echo(f"no figure: {error.name} is missing; pip install 'cohort-app[demo]'", err=True)


def _fail(message: str, code: int = 2) -> None:
    typer.echo(message, err=True)
    sys.exit(code)
