"""The commands `cohort up`, `simulate`, `plot`, `selectors` and `advise`; assembles the program `cohort`."""

import contextlib
import json
import shlex
import signal
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import typer
from rich.console import Console

from deploy.check.command import check
from deploy.device.cli import client
from deploy.engines.batched import BatchedSimulation, check_batched
from deploy.engines.engine import EngineError
from deploy.engines.flower_simulation import RaySimulation
from deploy.engines.local_cluster import LocalCluster
from deploy.engines.simulated_availability import check_availability
from deploy.flower.app_folder import app_folder
from deploy.hosting.cli import server
from deploy.option_types import AsJson, Track, argument, fail, optional
from deploy.page.command import Page, PagePort, page, page_of
from deploy.processes.signals import raise_on_signals
from deploy.runs import selector_advice
from deploy.runs.comparison_setup import Comparison, claim, planned_comparison, resumed, resumed_engine
from deploy.runs.display import LiveDisplay, PlainDisplay, report
from deploy.runs.figure import FIGURE, draw
from deploy.runs.follow_and_resume import train
from deploy.runs.imports import CommandWithImports, import_options
from deploy.runs.seed_statistics import parse_seeds
from deploy.runs.selector_advice import advice_of, find_history, read_log
from deploy.runs.selectors import describe, table_of_selectors, table_of_settings
from deploy.runs.slow_client_advice import slow_clients
from deploy.runs.trials import Trial, new_run_folder, run_folder, short_path
from deploy.sweeps.command import sweep
from server.history import FILE_NAME, RunHistory, read_run
from strategies.clients.printable import counted
from strategies.selectors import available

COMMANDS = "cohort.commands"  # the entry-point group in which other packages register commands
SELECTOR = "forecast"  # the default selector of `simulate`
# The default selectors of `up`.
SELECTORS = ["uniform", "md", "adaptive-osmd:learning-rate-multiplier=100", SELECTOR]
OPEN_API = (
    "While Flower's simulation runs, every user of this machine can submit runs to it. These runs execute "
    "with your rights. --engine batched has no such interface."
)
# `up` adds this setting, since clients that share the cores of one machine may take several times as long as
# usual. The user's settings take precedence.
PATIENT = "shortest-deadline=30.0"


class _Commands(typer.core.TyperGroup):
    """The commands of this file, followed by the commands that other packages register under `COMMANDS`.

    A command of another package is imported only when it is needed. A command of this file takes precedence
    over commands with the same name.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys([*super().list_commands(ctx), *sorted(entry_points(group=COMMANDS).names)]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if command := super().get_command(ctx, cmd_name):
            return command
        for entry in entry_points(group=COMMANDS, name=cmd_name):
            try:
                command = typer.main.get_command(entry.load())
                command.name = cmd_name
                return command
            except Exception as error:  # one broken command must not break the others
                return _broken_command(cmd_name, f"{cmd_name}: cannot be loaded: {error} ({entry.value})")
        return None


class _Once(CommandWithImports):
    """A command that refuses an option which is given twice, unless the option may be repeated.

    Click itself would silently use the last value.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            if isinstance(option, click.Option) and not option.multiple and given.count(option) > 1:
                raise click.UsageError(f"{option.opts[0]} is given more than once", ctx)
        return super().parse_args(ctx, args)


def _broken_command(name: str, problem: str) -> click.Command:
    """Return a command that accepts any arguments, prints the problem and exits with 1."""
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        name,
        callback=lambda **_: fail(problem, 1),
        help=problem,
        context_settings=anything,
        add_help_option=False,
    )


cli = typer.Typer(cls=_Commands, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
cli.add_typer(client, name="client")
cli.add_typer(server, name="server")
cli.command()(page)
cli.command(cls=_Once)(check)
cli.command(cls=_Once)(sweep)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cohort {version('cohort-app')} (Flower {version('flwr')})")
        raise typer.Exit


@cli.callback()
def cohort(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Client selection for federated learning: which clients train in each round."""


Clients = Annotated[int, typer.Option("--clients", "--num-clients", help="Number of clients.")]
Rounds = Annotated[int, typer.Option("--rounds", "--num-rounds", help="Rounds to train with each selector.")]
PerRound = Annotated[
    int, typer.Option("--per-round", "--clients-per-round", help="Clients that train in each round.")
]
Selectors = Annotated[
    list[str] | None,
    optional(
        "--selector",
        metavar="NAME[:SETTING=VALUE,...]",
        help="The selector; repeat the option to compare several selectors. (default: see below)",
    ),
]
Task = Annotated[str, typer.Option(help="What to learn: digits, mnist, mnist-mlp (needs torch), ...")]
Seed = Annotated[int, typer.Option(help="Seed of all random draws.")]
Seeds = Annotated[
    str | None,
    optional(
        metavar="1-5",
        help="Repeat everything with each of these seeds (1-5, or 1,3,7), and report means with intervals.",
    ),
]
Out = Annotated[Path | None, optional(help="Folder of the run. (default: runs/ and the current time)")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other setting of the run config in pyproject.toml; may be repeated.",
    ),
]
Resume = Annotated[
    str | None,
    optional(
        metavar="RUN",
        help="Resume an earlier run: its folder, or last (the newest in runs/). Its settings are kept; only "
        "--rounds may be raised.",
    ),
]
RunFolder = Annotated[
    str,
    argument(
        metavar="RUN",
        help="Folder of a run, of a trial or of a comparison; last: the newest comparison in runs/.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print failures and results only.")]


@cli.command(cls=_Once, epilog=f"Default selectors: {', '.join(SELECTORS)}.")
def up(
    context: typer.Context,
    clients: Clients = 10,
    rounds: Rounds = 30,
    per_round: PerRound = 3,
    selectors: Selectors = None,
    task: Task = "digits",
    seed: Seed = 1,
    seeds: Seeds = None,
    out: Out = None,
    port: Annotated[
        int | None, optional(min=1, max=65535, help="Port of the SuperLink. (default: a free port)")
    ] = None,
    settings: Settings = None,
    track: Track = None,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once/--in-turn", help="Train with all selectors at the same time, or one after another."
        ),
    ] = True,
    resume: Resume = None,
    show_page: Page = False,
    page_port: PagePort = None,
    quiet: Quiet = False,
) -> None:
    """Train a real federation on this machine, with a process for each client; once with each selector."""
    with _exit_on_bad_input(), contextlib.ExitStack() as stack:
        if resume is None:
            comparison = _planned(context, stack, SELECTORS, [PATIENT, *(settings or [])])
        else:
            comparison = resumed(resume, _given(context))
            resumed_engine(comparison.folder, "cluster", is_given=True)
        check_availability(comparison.trials, batched=False)
        engine = LocalCluster(comparison.folder, comparison.clients, app=app_folder(), port=port)
        claim(comparison, "cluster", again=resume is not None)
    with page_of(comparison.folder, show_page, page_port, typer.echo):
        _compare(engine, comparison, at_once=at_once, quiet=quiet)


@cli.command(cls=_Once, epilog=f"Default selector: {SELECTOR}.")
def simulate(
    context: typer.Context,
    engine: Annotated[
        Literal["batched", "ray"],
        typer.Option(
            help="batched: no messages; the selected clients of a round train as one computation. ray: "
            "Flower's own simulation, as `flwr run . local`; needs the extra `simulation`. While it runs, "
            "every user of this machine can submit runs to it."
        ),
    ] = "batched",
    workers: Annotated[
        int, typer.Option(help="With --engine batched: processes that train the clients of a round.")
    ] = 1,
    clients: Clients = 10,
    rounds: Rounds = 30,
    per_round: PerRound = 3,
    selectors: Selectors = None,
    task: Task = "digits",
    seed: Seed = 1,
    seeds: Seeds = None,
    out: Out = None,
    settings: Settings = None,
    track: Track = None,
    resume: Resume = None,
    show_page: Page = False,
    page_port: PagePort = None,
    quiet: Quiet = False,
) -> None:
    """Train the same federation without a network; once with each selector, one after another."""
    with _exit_on_bad_input(), contextlib.ExitStack() as stack:
        if resume is None:
            comparison = _planned(context, stack, [SELECTOR], settings)
        else:
            given = _given(context)
            comparison = resumed(resume, given)
            chosen = resumed_engine(comparison.folder, engine, is_given="engine" in given)
            engine = "batched" if chosen == "batched" else "ray"
        if engine == "ray" and workers != 1:
            raise ValueError(f"workers = {workers}: must be 1 with --engine ray")
        check_availability(comparison.trials, batched=engine == "batched")
        simulation: RaySimulation | BatchedSimulation
        if engine == "ray":
            simulation = RaySimulation(comparison.folder, comparison.clients, app=app_folder())
            typer.echo(OPEN_API, err=True)
        else:
            simulation = BatchedSimulation(comparison.folder, comparison.clients, workers)
            check_batched(comparison.trials)
        claim(comparison, engine, again=resume is not None)
    with page_of(comparison.folder, show_page, page_port, typer.echo):
        _compare(simulation, comparison, at_once=False, quiet=quiet)


def _planned(
    context: typer.Context,
    stack: contextlib.ExitStack,
    selectors: list[str],
    settings: Sequence[str] | None,
) -> Comparison:
    """Return the new comparison that the options of a command describe, by default with these selectors."""
    given = context.params
    out = given["out"]  # click's values: a path is a text
    return planned_comparison(
        given["clients"],
        given["rounds"],
        given["per_round"],
        given["selectors"] or selectors,
        given["task"],
        _seeds(context, given["seed"], given["seeds"]),
        Path(out).absolute() if out else stack.enter_context(new_run_folder(Path("runs"))),
        settings,
        given["track"],
    )


def _seeds(context: typer.Context, seed: int, seeds: str | None) -> list[int]:
    """Return the seeds of a new comparison: the seeds of --seeds, or the single seed of --seed."""
    if seeds is None:
        return [seed]
    if "seed" in _given(context):
        raise ValueError(f"seeds = {seeds!r}: cannot be combined with --seed")
    if seeds.strip().isdecimal():  # `--seeds 5` could mean five seeds
        raise ValueError(f"seeds = {seeds!r}: must be like 1-5 or 1,3,7-9; for one seed use --seed")
    return parse_seeds(seeds)


def _given(context: typer.Context) -> dict[str, Any]:
    """Return the options that the user gave on the command line, by parameter name."""
    written = click.core.ParameterSource.COMMANDLINE
    return {
        name: value for name, value in context.params.items() if context.get_parameter_source(name) is written
    }


def _compare(
    engine: LocalCluster | RaySimulation | BatchedSimulation,
    comparison: Comparison,
    *,
    at_once: bool,
    quiet: bool,
) -> None:
    """Start the engine, train the trials on it, and show the progress and then the results.

    The command exits with 1 if a trial or the engine failed, and with 128 + n after signal n (130 after
    Ctrl-C).
    """
    folder, trials = comparison
    title = comparison.title
    console = Console(highlight=False, markup=False)

    def display_of(shown: list[Trial]) -> PlainDisplay:
        if console.is_terminal and not quiet:
            return LiveDisplay(console, shown, title)
        return PlainDisplay(console, rounds=not quiet)

    try:
        with raise_on_signals(lambda number: SystemExit(128 + number)):
            console.print(f"{title}: starting; all files go to {short_path(folder)}", soft_wrap=True)
            if all(trial.done for trial in trials):
                console.print("there is nothing left to train")
            else:
                with engine:
                    console.print(engine.started)
                    for seed, each in comparison.by_seed.items():
                        if len(each) < len(trials):
                            console.print(f"seed {seed}")
                        with display_of(each) as display:
                            train(engine, each, display, at_once=at_once)
    except (EngineError, KeyboardInterrupt, SystemExit) as error:
        message, code = "stopped", 130  # after Ctrl-C
        if isinstance(error, SystemExit):
            code = int(error.code or 0)
            message = f"stopped by {signal.Signals(code - 128).name}"
        elif isinstance(error, EngineError):
            message, code = str(error), 1
        fail(message + _how_to_resume(engine, comparison), code)
    _conclude(console, folder, [trial.history for trial in trials])
    if any(trial.problem for trial in trials):
        raise typer.Exit(1)


def _how_to_resume(engine: LocalCluster | RaySimulation | BatchedSimulation, comparison: Comparison) -> str:
    """Return a line with the command that resumes a comparison; "" if nothing has been saved or is left."""
    trials = comparison.trials
    if not any(trial.can_go_on for trial in trials) and len({trial.done for trial in trials}) == 1:
        return ""
    command = "up" if isinstance(engine, LocalCluster) else "simulate"
    folder = shlex.quote(short_path(comparison.folder))
    return f"\nto resume: cohort {command} --resume {folder}{import_options()}"


@contextlib.contextmanager
def _exit_on_bad_input() -> Iterator[None]:
    """If the block raises an error about an option, print the error's message and exit with 2."""
    try:
        yield
    except (ModuleNotFoundError, OSError, TypeError, ValueError) as error:
        fail(str(error))


@cli.command()
def plot(
    run: RunFolder,
) -> None:
    """Draw the figure and the table of a run again, from its histories."""
    with _exit_on_bad_input():
        folder = run_folder(run)
        histories = read_run(folder)
    _conclude(Console(highlight=False, markup=False), folder, histories)


@cli.command(cls=CommandWithImports)
def selectors(
    name: Annotated[str | None, argument(help="A selector: show its settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the selectors: what each does and needs, and whether it is unbiased."""
    with _exit_on_bad_input():
        if as_json:
            names = available() if name is None else [name]
            typer.echo(json.dumps({each: describe(each) for each in names}))
            return
        Console(highlight=False).print(table_of_selectors() if name is None else table_of_settings(name))


@cli.command(cls=_Once)
def advise(
    run: RunFolder,
    selectors: Annotated[
        list[str] | None,
        optional(
            "--selector",
            metavar="NAME[:SETTING=VALUE,...]",
            help="A selector to study; may be repeated. (default: the usual ones)",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate, from a run's history, the variance of the aggregate that other selectors would have had.

    If clients are slow, suggest settings that help.
    """
    console = Console(highlight=False, markup=False)
    with _exit_on_bad_input():
        history = find_history(run_folder(run))
        slow = slow_clients(history.path)
        if history.settings.get("mode") == "buffered" and slow and not selectors:
            if as_json:
                typer.echo(selector_advice.as_json(None, slow))
                return
            console.print(f"from {short_path(history.path)}", soft_wrap=True)
            console.print("Rounds are buffered, so other selectors cannot be studied.")
            console.print(slow.text())
            return
        log = read_log(history)
        findings = advice_of(log, selectors or ())
    if as_json:
        typer.echo(selector_advice.as_json(findings, slow))
        return
    console.print(f"from {counted(findings.rounds, 'round')} of {short_path(log.path)}", soft_wrap=True)
    console.print(selector_advice.table(findings))
    console.print(selector_advice.NOTE)
    console.print()
    console.print(selector_advice.sentence(findings))
    if slow:
        console.print()
        console.print(slow.text())


def _conclude(console: Console, folder: Path, histories: Sequence[RunHistory]) -> None:
    """Print the results of a comparison, draw its figure, and print the paths of its files."""
    console.print(report(histories))
    short = short_path(folder)
    files = {
        name: f"{short}/{pattern}"
        for name, pattern in (
            ("history", FILE_NAME),
            ("histories", f"*/{FILE_NAME}"),
            ("model", "model.safetensors"),
            ("models", "*/model.safetensors"),
            ("logs", "logs"),
        )
        if any(folder.glob(pattern))
    }
    tracked = [
        f"{short}/{each}" for each in ("*/tensorboard", "*/mlruns", "*/wandb") if any(folder.glob(each))
    ]
    if tracked:
        files["trackers"] = ", ".join(tracked)
    try:
        draw(histories, folder / FIGURE)
        figure = f"{short}/{FIGURE}"
    except ModuleNotFoundError as error:
        figure = f"none: {error.name} is missing; pip install 'cohort-app[demo]', then cohort plot {short}"
    except (OSError, ValueError) as error:
        figure = f"none: {error}"
    console.print()
    for name, where in {"figure": figure, **files}.items():
        console.print(f"{name:<10} {where}", soft_wrap=True)
