"""The `cohort` command.

`up` trains a real federation on this machine, `simulate` trains a simulated federation, `plot` draws the
results again, `page` shows a run in the browser, `selectors` lists the selectors, and `advise` estimates the
variance of other selectors.
`client` and `server` come from `deploy.device.cli` and `deploy.hosting.cli`. Other packages can add commands.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
from datetime import datetime
from importlib.metadata import entry_points, version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn

import click
import typer
from rich.console import Console

from deploy.device.cli import client
from deploy.engines.batched import BatchedSimulation, check_batched
from deploy.engines.cluster import MARK, LocalCluster
from deploy.engines.engine import EngineError
from deploy.engines.flower_simulation import RaySimulation
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue
from deploy.hosting.cli import server
from deploy.page.command import Page, PagePort, page, page_of
from deploy.processes.groups import processes_with, wait_until
from deploy.processes.signals import raise_on_signals
from deploy.runs import advice
from deploy.runs.advice import advice_of, find_history, read_log
from deploy.runs.availability import check_availability
from deploy.runs.display import LiveDisplay, PlainDisplay, report
from deploy.runs.figure import FIGURE, draw
from deploy.runs.follower import train
from deploy.runs.imports import CommandWithImports
from deploy.runs.seeds import parse_seeds
from deploy.runs.selectors import describe, table_of_selectors, table_of_settings
from deploy.runs.trials import (
    Trial,
    check_clients,
    check_data,
    groups_of,
    parse_setting,
    plan,
    read_plan,
    run_folder,
    with_absolute_paths,
    write_plan,
)
from deploy.sweeps.command import sweep
from server.history import FILE_NAME, RunHistory, read_run
from server.tracking import check_trackers
from strategies.selectors import available

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

COMMANDS = "cohort.commands"  # the entry-point group in which other packages register commands
SELECTOR = "forecast"  # the default selector of `simulate`
# The default selectors of `up`.
SELECTORS = ["uniform", "md", "adaptive-osmd:learning-rate-multiplier=100", SELECTOR]
OPEN_API = (
    "While Flower's simulation runs, every user of this machine can submit runs to it. These runs execute "
    "with your rights. --engine batched has no such interface."
)
RECLAIM_TIMEOUT = 30.0  # seconds that the old processes of a resumed comparison have to end
# `up` runs all clients of several federations on the cores of one machine. There, an honest client may take
# several times as long as usual. The user's settings come after this setting, so they can replace it.
PATIENT = "shortest-deadline=30.0"
# Parameters of `up` and `simulate`, and the run-config setting that each parameter sets.
KEY_OF = {
    "clients": "num-clients",
    "rounds": "num-rounds",
    "per_round": "clients-per-round",
    "task": "task",
    "seed": "seed",
}
# Run-config settings that have an option of their own, and this option. --set refuses these settings.
OPTION_OF = {
    "num-clients": "--clients",
    "num-rounds": "--rounds",
    "clients-per-round": "--per-round",
    "selector": "--selector",
    "selector-settings": "--selector",
    "task": "--task",
    "seed": "--seed",
    "track": "--track",
    "output-dir": "--out",
    "resume": "--resume",
}


class _Commands(typer.core.TyperGroup):
    """The commands of this file, followed by the commands that other packages register under `COMMANDS`.

    A command of another package is imported only when it is needed. If a command of this file has the same
    name, the command of this file is used.
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
    """A command that refuses an option which is given twice, instead of silently using the last value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            if isinstance(option, click.Option) and not option.multiple and given.count(option) > 1:
                raise click.UsageError(f"{option.opts[0]} is given more than once", ctx)
        return super().parse_args(ctx, args)


def _broken_command(name: str, problem: str) -> click.Command:
    """Return a command that accepts any arguments, prints the problem and exits with 1."""

    def fail(**_: object) -> None:
        _fail(problem, 1)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=fail, help=problem, context_settings=anything, add_help_option=False)


cli = typer.Typer(cls=_Commands, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
cli.add_typer(client, name="client")
cli.add_typer(server, name="server")
cli.command()(page)
cli.command(cls=_Once)(sweep)


def main() -> None:
    """Run the `cohort` command with the arguments of this process."""
    cli()


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
    typer.Option(
        "--selector",
        metavar="NAME[:SETTING=VALUE,...]",
        help="The selector; repeat the option to compare several selectors. (default: see below)",
        show_default=False,
    ),
]
Task = Annotated[str, typer.Option(help="What to learn: digits, mnist, mnist-mlp (needs torch), ...")]
Seed = Annotated[int, typer.Option(help="Seed of all random draws.")]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="1-5",
        help="Repeat everything with each of these seeds (1-5, or 1,3,7), and report means with intervals.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder of the run. (default: runs/ and the current time)", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other setting of the run config in pyproject.toml; may be repeated.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME",
        help="Also show the rounds in tensorboard, mlflow or wandb; may be repeated.",
        show_default=False,
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="Resume an earlier run: its folder, or last (the newest in runs/). Its settings are kept; only "
        "--rounds may be raised.",
        show_default=False,
    ),
]
RunFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Folder of a run, of a trial or of a comparison; last: the newest comparison in runs/.",
        show_default=False,
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
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the SuperLink. (default: a free port)", show_default=False
        ),
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
    with _exit_on_bad_input():
        if resume is None:
            patient = [PATIENT, *(settings or [])]
            comparison = _comparison(
                clients,
                rounds,
                per_round,
                selectors or SELECTORS,
                task,
                _seeds(context, seed, seeds),
                out,
                patient,
                track,
            )
        else:
            comparison = _resumed(resume, _given(context))
        check_availability(comparison.trials, batched=False)
        engine = LocalCluster(comparison.folder, comparison.clients, app=app_folder(), port=port)
        _claim(comparison, again=resume is not None)
    with page_of(comparison.folder, show_page, page_port, typer.echo):
        _compare(engine, comparison, at_once=at_once, quiet=quiet)


@cli.command(cls=_Once, epilog=f"Default selector: {SELECTOR}.")
def simulate(
    context: typer.Context,
    engine: Annotated[
        Literal["ray", "batched"],
        typer.Option(
            help="ray: Flower's own simulation, as `flwr run . local`. While it runs, every user of this "
            "machine can submit runs to it. batched: no messages; the selected clients of a round train as "
            "one computation."
        ),
    ] = "ray",
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
    with _exit_on_bad_input():
        if resume is None:
            comparison = _comparison(
                clients,
                rounds,
                per_round,
                selectors or [SELECTOR],
                task,
                _seeds(context, seed, seeds),
                out,
                settings,
                track,
            )
        else:
            comparison = _resumed(resume, _given(context))
        if engine == "ray" and workers != 1:
            raise ValueError(f"workers = {workers}: must be 1 with --engine ray")
        simulation: RaySimulation | BatchedSimulation
        if engine == "ray":
            simulation = RaySimulation(comparison.folder, comparison.clients, app=app_folder())
            typer.echo(OPEN_API, err=True)
        else:
            simulation = BatchedSimulation(comparison.folder, comparison.clients, workers)
            check_batched(comparison.trials)
        check_availability(comparison.trials, batched=engine == "batched")
        _claim(comparison, again=resume is not None)
    with page_of(comparison.folder, show_page, page_port, typer.echo):
        _compare(simulation, comparison, at_once=False, quiet=quiet)


class _Comparison(NamedTuple):
    """The folder of a comparison, and its trials (at least one)."""

    folder: Path
    trials: list[Trial]

    @property
    def clients(self) -> int:
        return int(self.trials[0].run_config["num-clients"])

    @property
    def by_seed(self) -> dict[ConfigValue, list[Trial]]:
        """The trials of each seed."""
        found: dict[ConfigValue, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(trial.run_config["seed"], []).append(trial)
        return found

    @property
    def title(self) -> str:
        settings = self.trials[0].run_config
        seeds = list(self.by_seed)
        shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
        return (
            f"{settings['num-clients']} clients · {settings['clients-per-round']} per round · "
            f"{settings['task']} · {shown}"
        )


def _comparison(
    clients: int,
    rounds: int,
    per_round: int,
    selectors: Sequence[str],
    task: str,
    seeds: Sequence[int],
    out: Path | None,
    settings: Sequence[str] | None,
    track: Sequence[str] | None,
) -> _Comparison:
    """Return the comparison that the command-line options describe. Nothing is written yet.

    Raises
    ------
    ModuleNotFoundError, TypeError, ValueError
        If an option or a setting is wrong, or if the task needs an extra that is not installed.
    """
    folder = (out or Path("runs") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")).absolute()
    common: dict[str, ConfigValue] = {
        "num-clients": clients,
        "num-rounds": rounds,
        "clients-per-round": per_round,
        "task": task,
        "seed": seeds[0],
    }
    for key, value in map(parse_setting, settings or []):
        if key in OPTION_OF:
            raise ValueError(f"set = {key}={value}: use {OPTION_OF[key]} for this setting")
        common[key] = value
    if track:
        common["track"] = " ".join(track)
    common = with_absolute_paths(common)
    trials = plan(selectors, common, app_folder(), folder, seeds)
    check_data(common)
    for seed in seeds:
        groups = groups_of({**common, "seed": seed})
        check_clients([trial for trial in trials if trial.run_config["seed"] == seed], groups, groups)
    return _Comparison(folder, trials)


def _seeds(context: typer.Context, seed: int, seeds: str | None) -> list[int]:
    """Return the seeds of a new comparison: those of --seeds, or the one of --seed."""
    if seeds is None:
        return [seed]
    if "seed" in _given(context):
        raise ValueError(f"seeds = {seeds!r}: cannot be combined with --seed")
    return parse_seeds(seeds)


def _given(context: typer.Context) -> dict[str, Any]:
    """Return the options that the user gave, by parameter name. Options with their defaults are left out."""
    written = click.core.ParameterSource.COMMANDLINE
    return {
        name: value for name, value in context.params.items() if context.get_parameter_source(name) is written
    }


def _resumed(run: str, given: Mapping[str, Any]) -> _Comparison:
    """Return an earlier comparison, to resume it.

    Parameters
    ----------
    run : str
        The folder of the comparison, or "last" for the newest one in runs/.
    given : Mapping[str, Any]
        The options that the user gave, by parameter name. They must equal the saved settings, except for the
        number of rounds: a larger number replaces the saved number, a smaller number is ignored.

    Raises
    ------
    ValueError
        If there is no such comparison, or if an option differs from the saved settings.
    """
    folder = run_folder(run)
    if "seeds" in given:
        raise ValueError(f"seeds = {given['seeds']!r}: a resumed run keeps its seeds")
    if "out" in given:
        raise ValueError(f"out = {given['out']}: a resumed run must stay in its folder")
    trials = read_plan(folder)
    changes = {key: given[name] for name, key in KEY_OF.items() if name in given}
    changes |= dict(map(parse_setting, given.get("settings", ())))
    if "track" in given:
        changes["track"] = " ".join(given["track"])
    rounds = changes.pop("num-rounds", 0)
    for trial in trials:
        for key, value in changes.items():
            if trial.run_config.get(key) != value:
                before = trial.run_config.get(key, "the default")
                raise ValueError(f"{key} = {value}: the run to be resumed has {before}")
        trial.run_config["num-rounds"] = max(rounds, trial.run_config["num-rounds"])
        check_trackers(str(trial.run_config.get("track", "")))
    if "selectors" in given:
        seeds = list(dict.fromkeys(int(trial.run_config["seed"]) for trial in trials))
        planned = plan(given["selectors"], trials[0].run_config, app_folder(), folder, seeds)
        names = [trial.name for trial in planned]
        if names != [trial.name for trial in trials]:
            before = ", ".join(trial.name for trial in trials)
            raise ValueError(
                f"selector = {', '.join(given['selectors'])}: the run to be resumed has {before}"
            )
    return _Comparison(folder, trials)


def _compare(
    engine: LocalCluster | RaySimulation | BatchedSimulation,
    comparison: _Comparison,
    *,
    at_once: bool,
    quiet: bool,
) -> None:
    """Train the trials on the engine; show the progress, and then the results.

    The command exits with 1 if a trial or the engine failed, and with 128 + n after signal n (130 after
    Ctrl-C).

    Parameters
    ----------
    engine : LocalCluster | RaySimulation | BatchedSimulation
        The engine, not yet started.
    comparison : _Comparison
        The trials, and the folder for the results.
    at_once : bool
        Whether the trials train at the same time, or one after another.
    quiet : bool
        Whether to print failures and results only.
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
            console.print(f"{title}: starting; all files go to {_short(folder)}", soft_wrap=True)
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
        command = {RaySimulation: "simulate", BatchedSimulation: "simulate --engine batched"}.get(
            type(engine), "up"
        )
        message, code = "stopped", 130  # after Ctrl-C
        if isinstance(error, SystemExit):
            code = int(error.code or 0)
            message = f"stopped by {signal.Signals(code - 128).name}"
        elif isinstance(error, EngineError):
            message, code = str(error), 1
        _fail(f"{message}\nto resume: cohort {command} --resume {_short(folder)}", code)
    _conclude(console, folder, [trial.history for trial in trials])
    if any(trial.problem for trial in trials):
        raise typer.Exit(1)


@contextlib.contextmanager
def _exit_on_bad_input() -> Iterator[None]:
    """If the block raises an error about an option, print the error's message and exit with 2."""
    try:
        yield
    except (ModuleNotFoundError, TypeError, ValueError) as error:
        _fail(str(error), 2)


@cli.command()
def plot(
    run: RunFolder,
) -> None:
    """Draw the figure and the table of a run again, from its histories."""
    with _exit_on_bad_input():
        folder = run_folder(run)
        histories = read_run(folder)
    _conclude(Console(highlight=False, markup=False), folder, histories)


@cli.command()
def selectors(
    name: Annotated[
        str | None, typer.Argument(help="A selector: show its settings.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object, and nothing else.")] = False,
) -> None:
    """List the selectors: what each does and needs, and whether it is unbiased."""
    with _exit_on_bad_input():
        if as_json:
            names = available() if name is None else [name]
            typer.echo(json.dumps({each: describe(each) for each in names}))
            return
        Console(highlight=False).print(table_of_selectors() if name is None else table_of_settings(name))


@cli.command()
def advise(
    run: RunFolder,
    selectors: Annotated[
        list[str] | None,
        typer.Option(
            "--selector",
            metavar="NAME[:SETTING=VALUE,...]",
            help="A selector to study; may be repeated. (default: the usual ones)",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object, and nothing else.")] = False,
) -> None:
    """Estimate from the history of a run which variance other selectors would have had."""
    with _exit_on_bad_input():
        log = read_log(find_history(run_folder(run)))
        findings = advice_of(log, selectors or ())
    if as_json:
        typer.echo(advice.as_json(findings))
        return
    console = Console(highlight=False, markup=False)
    console.print(f"from {findings.rounds} rounds of {_short(log.path)}", soft_wrap=True)
    console.print(advice.table(findings))
    console.print(advice.NOTE)
    console.print()
    console.print(advice.sentence(findings))


def _conclude(console: Console, folder: Path, histories: Sequence[RunHistory]) -> None:
    """Print the results of a comparison, draw its figure, and print the paths of its files."""
    console.print(report(histories))
    short = _short(folder)
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


def _claim(comparison: _Comparison, *, again: bool) -> None:
    """Prepare the folder of a comparison, and write the plan into it.

    Parameters
    ----------
    comparison : _Comparison
        The comparison.
    again : bool
        Whether the comparison is resumed. Then its folder exists and is taken over. Otherwise the folder must
        be missing or empty.

    Raises
    ------
    ValueError
        If the folder cannot be used.
    """
    folder = comparison.folder
    try:
        if again:
            _reclaim(folder)
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"out = {folder}: must be a new or an empty folder")
        (folder / "logs").mkdir(parents=True)
        write_plan(folder, comparison.trials)
    except OSError as error:
        raise ValueError(f"out = {folder}: cannot be created or written: {error.strerror}") from error


def _reclaim(folder: Path) -> None:
    """Take over the folder of a comparison that has ended or was killed.

    The state of the old processes is removed, and the folder of their logs is renamed.

    Raises
    ------
    ValueError
        If processes of the comparison's local cluster still run after `RECLAIM_TIMEOUT`.
    """
    # Wait for the old watchdog too: it would kill the new processes, which have the same mark.
    if not wait_until(lambda: not processes_with(MARK, str(folder.resolve())), RECLAIM_TIMEOUT):
        raise ValueError(f"resume = {folder}: this run is still going on; stop it first")
    if sys.platform == "linux":  # on other systems, old processes may still use the state
        shutil.rmtree(folder / "state", ignore_errors=True)
    if (folder / "logs").exists():
        number = next(n for n in count(1) if not (folder / f"logs-{n}").exists())
        (folder / "logs").rename(folder / f"logs-{number}")


def _short(path: Path) -> str:
    """Return the path relative to the working directory if it lies below that directory, else absolute."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
