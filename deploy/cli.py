"""The command line: train a real federation on this machine or a simulated one, draw a run, measure."""

from __future__ import annotations

import contextlib
import signal
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, NoReturn

import typer
from rich.console import Console

import tasks
from benchmarks.command import bench
from deploy.arms import Arm, parse_setting, plan, train
from deploy.cluster import LocalCluster
from deploy.display import LiveDisplay, PlainDisplay, report
from deploy.edge.cli import client
from deploy.history import FILE_NAME, ArmHistory, read_run
from deploy.plot import draw
from deploy.serve.cli import server
from deploy.simulate import RaySimulation
from deploy.submission import ConfigValue, EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

APP = Path(__file__).resolve().parent.parent
FIGURE = "cohort.png"
SELECTORS = ["uniform", "md", "adaptive-osmd", "adaptive-osmd:learning-rate-multiplier=100"]
# What has an option of its own (or is none of the user's business) cannot be given with --set.
OPTION_OF = {
    "num-clients": "--clients",
    "num-rounds": "--rounds",
    "clients-per-round": "--per-round",
    "selector": "--selector",
    "selector-settings": "--selector",
    "task": "--task",
    "seed": "--seed",
    "output-dir": "--out",
}

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
cli.add_typer(bench, name="bench")
cli.add_typer(client, name="client")
cli.add_typer(server, name="server")


def main() -> None:
    """Run the command line."""
    cli()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cohort {version('flwr-cohort')} (Flower {version('flwr')})")
        raise typer.Exit


@cli.callback()
def cohort(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Client selection for federated learning: who trains in each round."""


Clients = Annotated[int, typer.Option(help="How many clients there are.")]
Rounds = Annotated[int, typer.Option(help="How many rounds each selector gets.")]
PerRound = Annotated[int, typer.Option(help="How many clients train in a round.")]
Selectors = Annotated[
    list[str] | None,
    typer.Option(
        "--selector",
        metavar="NAME[:SETTING=VALUE,...]",
        help=f"Who decides; repeat it to compare several. (default: {', '.join(SELECTORS)})",
        show_default=False,
    ),
]
Task = Annotated[str, typer.Option(help="What is learned: digits or digits-mlp (torch).")]
Seed = Annotated[int, typer.Option(help="The seed of all randomness.")]
Out = Annotated[
    Path | None, typer.Option(help="The run's folder. (default: runs/ and the time)", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of pyproject.toml's run config."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Only failures and the result.")]


@cli.command()
def up(
    clients: Clients = 10,
    rounds: Rounds = 30,
    per_round: PerRound = 3,
    selectors: Selectors = None,
    task: Task = "digits",
    seed: Seed = 1,
    out: Out = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="SuperLink's port. (default: a free one)", show_default=False),
    ] = None,
    settings: Settings = None,
    at_once: Annotated[
        bool, typer.Option("--at-once/--in-turn", help="Train with all selectors at once, or one by one.")
    ] = True,
    quiet: Quiet = False,
) -> None:
    """Train a real federation on this machine, a process for each client, once with each selector."""
    with _bad_input_ends_it():
        comparison = _comparison(clients, rounds, per_round, selectors, task, seed, out, settings)
        engine = LocalCluster(comparison.folder, clients, app=APP, port=port)
        _claim(comparison.folder)
    _compare(engine, comparison, at_once=at_once, quiet=quiet)


@cli.command()
def simulate(
    engine: Annotated[
        Literal["ray"], typer.Option(help="ray: Flower's own simulation, as `flwr run . local`.")
    ] = "ray",
    clients: Clients = 10,
    rounds: Rounds = 30,
    per_round: PerRound = 3,
    selectors: Selectors = None,
    task: Task = "digits",
    seed: Seed = 1,
    out: Out = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Train the same federation without a network, once with each selector, one after the other."""
    with _bad_input_ends_it():
        comparison = _comparison(clients, rounds, per_round, selectors, task, seed, out, settings)
        simulation = RaySimulation(comparison.folder, clients, app=APP)
        _claim(comparison.folder)
    _compare(simulation, comparison, at_once=False, quiet=quiet)


class _Comparison(NamedTuple):
    folder: Path
    title: str
    arms: list[Arm]


def _comparison(
    clients: int,
    rounds: int,
    per_round: int,
    selectors: Sequence[str] | None,
    task: str,
    seed: int,
    out: Path | None,
    settings: Sequence[str] | None,
) -> _Comparison:
    """Turn the options into what is to be trained, all checked; nothing is written yet."""
    folder = (out or Path("runs") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")).absolute()
    common: dict[str, ConfigValue] = {
        "num-clients": clients,
        "num-rounds": rounds,
        "clients-per-round": per_round,
        "task": task,
        "seed": seed,
    }
    if not (APP / "pyproject.toml").is_file():
        raise ValueError("this runs from a clone of the repository: its folder is the Flower app")
    for key, value in map(parse_setting, settings or []):
        if key in OPTION_OF:
            raise ValueError(f"set = {key}={value}: this one is given with {OPTION_OF[key]}")
        common[key] = value
    arms = plan(selectors or SELECTORS, common, APP, folder)
    _try_out(task, clients, seed)
    return _Comparison(folder, f"{clients} clients · {per_round} a round · {task} · seed {seed}", arms)


def _compare(
    engine: LocalCluster | RaySimulation, comparison: _Comparison, *, at_once: bool, quiet: bool
) -> None:
    """Train the arms on the engine, show how it goes, and exit with what the run deserves."""
    folder, title, arms = comparison
    console = Console(highlight=False, markup=False)
    display: PlainDisplay
    if console.is_terminal and not quiet:
        display = LiveDisplay(console, arms, title)
    else:
        display = PlainDisplay(console, rounds=not quiet)
    try:
        with _signals_end_the_block():
            console.print(f"{title}: starting; everything goes to {_short(folder)}", soft_wrap=True)
            with engine:
                console.print(engine.started)
                with display:
                    train(engine, arms, display, at_once=at_once)
    except EngineError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail(f"stopped; what was written until then is in {_short(folder)}", 130)
    _conclude(console, folder, [arm.history for arm in arms])
    if any(arm.problem for arm in arms):
        raise typer.Exit(1)


@contextlib.contextmanager
def _bad_input_ends_it() -> Iterator[None]:
    """Say what is wrong with the user's words, and end."""
    try:
        yield
    except (ModuleNotFoundError, TypeError, ValueError) as error:
        _fail(str(error), 2)


@cli.command()
def plot(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
) -> None:
    """Draw the figure and the table of a run again, from its histories alone."""
    try:
        histories = read_run(run_dir)
    except ValueError as error:
        _fail(str(error), 2)
    _conclude(Console(highlight=False, markup=False), run_dir, histories)


def _conclude(console: Console, folder: Path, histories: Sequence[ArmHistory]) -> None:
    """Print what came of a run, draw its figure, and say where everything lies."""
    console.print(report(histories))
    short = _short(folder)
    lies = {
        name: f"{short}/{pattern}"
        for name, pattern in (
            ("histories", f"*/{FILE_NAME}"),
            ("models", "*/model.safetensors"),
            ("logs", "logs"),
        )
        if any(folder.glob(pattern))
    }
    try:
        draw(histories, folder / FIGURE)
        figure = f"{short}/{FIGURE}"
    except ModuleNotFoundError as error:
        figure = f"none: {error.name} is missing; pip install 'flwr-cohort[demo]', then cohort plot {short}"
    except ValueError as error:
        figure = f"none: {error}"
    console.print()
    for name, where in {"figure": figure, **lies}.items():
        console.print(f"{name:<10} {where}", soft_wrap=True)


def _try_out(task: str, clients: int, seed: int) -> None:
    """Make the task and a client's data, or what is wrong with them would show only in the clients' logs."""
    created = tasks.create(task)
    try:
        created.client_data(0, clients, seed)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"task = {task!r} needs {error.name}: pip install 'flwr-cohort[demo]'", name=error.name
        ) from error


def _claim(folder: Path) -> None:
    """Make the run's folder, if it is not there already, and see that it can be written to."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"out = {folder}: must be a new or an empty folder")
        (folder / "logs").mkdir(parents=True)
    except OSError as error:
        raise ValueError(f"out = {folder}: cannot be made or written to: {error.strerror}") from error


@contextlib.contextmanager
def _signals_end_the_block() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP from a terminal that is closed, end the block as Ctrl-C does: cleanly."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    # Python leaves it ignored where a script started us in the background.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _short(path: Path) -> str:
    """Name a path as seen from here, where that is shorter."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
