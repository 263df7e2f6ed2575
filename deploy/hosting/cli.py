"""The commands of `cohort server`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from deploy.device.invitation import SUFFIX
from deploy.engines.engine import EngineError
from deploy.engines.superlink import SuperLink
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue, default_config
from deploy.hosting.programs import MARK, Programs
from deploy.hosting.server import CONNECTION, FILE, Server, ServerError
from deploy.processes.groups import processes_with, wait_until
from deploy.processes.ports import is_free
from deploy.runs.follower import Events, train
from deploy.runs.trials import Trial, parse_setting
from server.history import FILE_NAME, RunHistory
from server.settings import RunSettings, check_same_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

RECLAIM_TIMEOUT = 5.0  # seconds for the processes of a killed server to end

server = typer.Typer(no_args_is_help=True, help="Run a server for real devices.")

Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="Folder of the server. (default: /var/lib/cohort-server for root, else "
        "~/.local/state/cohort-server)",
        show_default=False,
    ),
]


@server.callback()
def _server() -> None:
    """Run a server for real devices: certificates, clients, runs."""


@server.command()
def up(
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address under which devices reach this machine; may be repeated. "
            "Required the first time.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port for devices. (default: 9092)", show_default=False),
    ] = None,
    control_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port for the operator, on this machine only. (default: 9093)",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Address on which to listen for devices. (default: 0.0.0.0)", show_default=False),
    ] = None,
    folder: Dir = None,
) -> None:
    """Run the server until Ctrl-C. Options and clients are saved: later, `up` alone is enough."""
    where = (folder or _default_folder()).absolute()
    given = {"hosts": host and tuple(host), "port": port, "control_port": control_port, "listen": listen}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    try:
        before = asdict(Server.load(where)) if (where / FILE).exists() or not host else {"folder": where}
        this = Server(**{**before, **changes})
        if not wait_until(lambda: not processes_with(MARK, str(where)), RECLAIM_TIMEOUT):
            raise ServerError(f"dir = {where}: the server of this folder is running already")
        for each in (this.port, this.control_port):
            if not is_free(each):
                raise ServerError(f"port = {each}: taken by another program; choose another one")
        if done := this.save():
            _say(f"{done} a certificate for {', '.join(this.hosts)}")
        with _interrupt_on_signals(), Programs(this, _say):
            _say(_greeting(this))
            while True:
                time.sleep(1)
    except (ServerError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _say("stopped")


@server.command()
def invite(
    name: Annotated[str, typer.Argument(help="Name of the new client.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write. (default: NAME.invitation)", show_default=False)
    ] = None,
    folder: Dir = None,
) -> None:
    """Write an invitation for client NAME: a file with which one device can join. Keep it secret."""
    file = out or Path(f"{name}{SUFFIX}")
    with _exit_on_error():
        _load(folder).invite(name, file)
    typer.echo(f"{file}: copy it to the device and run there: cohort client join --invitation {file.name}")


@server.command()
def register(
    name: Annotated[str, typer.Argument(help="Name of the client.")],
    key: Annotated[
        list[str], typer.Argument(help="The client's public key, as `cohort client join` printed it.")
    ],
    folder: Dir = None,
) -> None:
    """Register the device that has KEY, a line that `cohort client join` printed, as client NAME."""
    with _exit_on_error():
        node = _load(folder).register(name, " ".join(key))
    typer.echo(f"{name} is registered (node {node}); it comes online by itself")


@server.command()
def revoke(name: Annotated[str, typer.Argument(help="Name of the client.")], folder: Dir = None) -> None:
    """Remove client NAME: its key is no longer accepted, and its connection is closed."""
    with _exit_on_error():
        _load(folder).revoke(name)
    typer.echo(f"{name} is revoked")


@server.command("list")
def list_clients(folder: Dir = None) -> None:
    """List the registered clients, and whether each is online."""
    with _exit_on_error():
        states = _load(folder).states()
    for name, state in states.items():
        typer.echo(f"{name:<30} {state}")
    typer.echo(f"{len(states)} registered, {sum(state == 'online' for state in states.values())} online")


@server.command()
def run(
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the run config in pyproject.toml; may be repeated.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Resume an earlier run: its folder, or last. Its settings are kept; only num-rounds may be "
            "raised.",
            show_default=False,
        ),
    ] = None,
    folder: Dir = None,
) -> None:
    """Train this project's app on the clients, and follow the run. For another app: `flwr run`, see `up`."""
    with _exit_on_error():
        this = _load(folder)
        given = dict(map(parse_setting, setting or []))
        removed = {"removed-clients": str(this.revoked_file)}
        if resume is None:
            out = this.folder / "runs" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
            config = {"output-dir": str(out), **removed, **given}
            RunSettings.from_run_config({**default_config(app_folder()), **config})
        else:
            out = _earlier(this, resume)
            config = _resumed(out, {**removed, **given})
        this.check_is_up()
        out.mkdir(exist_ok=resume is not None)
        trial = Trial(out.name, config, RunHistory(Path(str(config["output-dir"])) / FILE_NAME))
        with SuperLink(CONNECTION, app_folder(), this.folder, this.environment()) as superlink:
            try:
                train(superlink, [trial], Events(_say), at_once=False)
            except KeyboardInterrupt:
                _fail(_how_to_stop(this, superlink, trial), 130)
    if not trial.history.finished:
        _fail(f"to resume: cohort server run --resume {trial.folder}", 1)
    typer.echo(f"history and models: {trial.folder}")


def _how_to_stop(server: Server, superlink: SuperLink, trial: Trial) -> str:
    """Tell the operator that the run goes on, and how to stop it."""
    if not superlink.runs:
        return "stopped before the run was submitted"
    flwr = f"FLWR_HOME={server.folder / 'flwr'} flwr stop {superlink.runs[-1].run_id} {CONNECTION}"
    return f"no longer followed; the run goes on, its history: {trial.history.path}\nto stop it: {flwr}"


def _earlier(server: Server, run: str) -> Path:
    """Return the folder of an earlier run."""
    if run != "last":
        return Path(run).absolute()
    histories = sorted((server.folder / "runs").glob(f"*/{FILE_NAME}"))
    if not histories:
        raise ServerError(f"resume = last: there is no run in {server.folder / 'runs'}; give its folder")
    return histories[-1].parent


def _resumed(folder: Path, given: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """Return the run config of an earlier run, and refuse changes that would change finished rounds."""
    history = RunHistory(folder / FILE_NAME)
    history.read()
    if not history.settings:
        raise ServerError(f"resume = {folder}: holds no {FILE_NAME}, so there is no run to resume")
    changes = {key.replace("-", "_"): value for key, value in given.items()}
    check_same_run(history.settings, history.settings | changes)
    known = history.settings.keys() & RunSettings.model_fields.keys()
    before = {key.replace("_", "-"): history.settings[key] for key in known}
    return {**before, **given, "output-dir": str(folder)}


def _greeting(server: Server) -> str:
    option = "" if server.folder == _default_folder() else f" --dir {server.folder}"
    return f"""\
up at {server.address}; devices verify it with {server.authority}
  invite a device        cohort server invite NAME{option}
  or join with a key of its own, on the device:
                         cohort client join --server {server.address} --ca ca.crt
  list clients           cohort server list{option}
  train                  cohort server run --set num-clients=N{option}
  train another app      FLWR_HOME={server.folder / "flwr"} flwr run APP {CONNECTION} --stream"""


@contextlib.contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _exit_on_error() -> Iterator[None]:
    try:
        yield
    except (EngineError, ServerError, ValueError, OSError) as error:
        _fail(str(error))


def _load(folder: Path | None) -> Server:
    return Server.load((folder or _default_folder()).absolute())


def _default_folder() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/cohort-server")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "cohort-server"


def _say(text: str) -> None:
    typer.echo(f"{datetime.now():%H:%M:%S} {text}")


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
