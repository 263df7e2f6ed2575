"""The commands of `cohort server`."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from deploy.device.invitation import SUFFIX
from deploy.device.state import default_folder
from deploy.engines.engine import EngineError
from deploy.engines.superlink import SuperLink
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue, default_config
from deploy.hosting.programs import MARK, Programs
from deploy.hosting.server import CONNECTION, FILE, STRANGER, Server, ServerError
from deploy.metrics.collector import Sources
from deploy.metrics.endpoint import check_address, serving, url
from deploy.processes.groups import processes_with, wait_until
from deploy.processes.ports import LOOPBACK, is_free
from deploy.processes.signals import raise_on_signals
from deploy.runs.follower import Events, train
from deploy.runs.trials import Trial, parse_setting, with_absolute_paths
from deploy.tls.certificates import AUTHORITY_KEY
from server.history import FILE_NAME, RunHistory
from server.settings import RunSettings, check_same_run
from server.tracking import check_trackers
from strategies.clients.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LINES = "\n\t"  # the characters that are not printable and are kept in messages
PROGRAM = "cohort-server"  # the name of a server's default folder
OFF = "off"  # the value of --metrics that ends the metrics
RECLAIM_TIMEOUT = 5.0  # seconds that the processes of a killed server may take to end

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
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Offer metrics for Prometheus at this address; without HOST, to this machine only. off: no "
            "metrics. (default: off)",
            show_default=False,
        ),
    ] = None,
    folder: Dir = None,
) -> None:
    """Run the server until Ctrl-C. Options and clients are saved: later, `up` alone is enough."""
    where = (folder or default_folder(PROGRAM)).absolute()
    given = {
        "hosts": host and tuple(host),
        "port": port,
        "control_port": control_port,
        "listen": listen,
        "metrics": "" if metrics == OFF else metrics,
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    try:
        before = asdict(Server.load(where)) if (where / FILE).exists() or not host else {"folder": where}
        this = Server(**{**before, **changes})
        if not wait_until(lambda: not processes_with(MARK, str(where)), RECLAIM_TIMEOUT):
            raise ServerError(f"dir = {where}: the server of this folder is running already")
        for each in (this.port, this.control_port):
            if not is_free(each):
                raise ServerError(f"port = {each}: taken by another program; choose another one")
        if this.metrics:
            check_address(this.metrics)
        if done := this.save():
            _say(f"{done} a certificate for {', '.join(this.hosts)}")
            _say(f"{this.authority.with_name(AUTHORITY_KEY)} is needed once a year only: keep it elsewhere")
        programs = Programs(this, _say)
        with raise_on_signals(lambda _: KeyboardInterrupt()), _metrics(this, programs), programs:
            _say(_greeting(this))
            while True:
                time.sleep(1)
    except (ServerError, ValueError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"dir = {where}: {error}")
    except KeyboardInterrupt:
        _say("stopped")


@contextlib.contextmanager
def _metrics(server: Server, programs: Programs) -> Iterator[None]:
    """Offer the server's metrics inside a `with` block, if the operator wants them."""
    if not server.metrics:
        yield
        return
    sources = Sources(
        runs=server.folder / "runs",
        control=server.control,
        fleet=server.local_fleet,
        fleet_name=LOOPBACK,
        authority=server.authority,
        secret=server.control_secret,
        starts=lambda: programs.starts,
    )
    with serving(server.metrics, sources):
        yield


@server.command()
def invite(
    name: Annotated[str, typer.Argument(help="Name of the new client.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write. (default: NAME.invitation)", show_default=False)
    ] = None,
    expires: Annotated[
        float, typer.Option(metavar="DAYS", min=0.001, max=365, help="Days until the invitation expires.")
    ] = 7.0,
    any_app: Annotated[
        bool,
        typer.Option(
            "--any-app", help="Let the device run any app that this server sends, not only today's."
        ),
    ] = False,
    folder: Dir = None,
) -> None:
    """Write an invitation for client NAME: a file with which one device can join, once. Keep it secret.

    The device will run only this project's app as it is now; `cohort client trust` changes that.
    """
    file = out or Path(f"{name}{SUFFIX}")
    with _exit_on_error():
        this = _load(folder)
        this.invite(name, file, expires, "" if any_app else this.bundle())
    typer.echo(f"{file}: copy it to the device and run there: cohort client join --invitation {file.name}")


@server.command()
def bundle(
    app: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of the app's pyproject.toml. (default: this project)", show_default=False
        ),
    ] = None,
    folder: Dir = None,
) -> None:
    """Print the hash of an app's bundle. A device runs this app after `cohort client trust HASH`."""
    with _exit_on_error():
        typer.echo(_load(folder).bundle(app))


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
def revoke(
    name: Annotated[str, typer.Argument(help="Name of the client, as `list` prints it.")], folder: Dir = None
) -> None:
    """Remove client NAME: its key and its invitation are no longer accepted, its connection is closed."""
    with _exit_on_error():
        _load(folder).revoke(name)
    typer.echo(f"{name} is revoked")


@server.command("list")
def list_clients(folder: Dir = None) -> None:
    """List the registered and the invited clients, and nodes that others registered, with their states.

    Exits with 1 if there are nodes that are not registered here.
    """
    with _exit_on_error():
        this = _load(folder)
        states, clients = this.states(), this.registry.clients()
    for name, state in states.items():
        typer.echo(f"{printable(name):<30} {printable(state)}")
    online = sum(states[name] == "online" for name in clients)
    typer.echo(f"{len(clients)} registered, {online} online")
    if strangers := [name for name in states if name.startswith(STRANGER)]:
        _fail(f"{len(strangers)} not registered here: who registered them? `revoke` removes them", 1)


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
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track",
            metavar="NAME",
            help="Also show the rounds in tensorboard, mlflow or wandb; may be repeated.",
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
    """Train this project's app on the clients, and follow the run.

    To train another app, use the command `flwr run` that `up` prints.
    """
    with _exit_on_error():
        this = _load(folder)
        given = with_absolute_paths(dict(map(parse_setting, setting or [])))
        if track:
            given["track"] = " ".join(track)
        removed = {"removed-clients": str(this.revoked_file)}
        if resume is None:
            out = this.folder / "runs" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
            config = {"output-dir": str(out), **removed, **given}
            RunSettings.from_run_config({**default_config(app_folder()), **config})
        else:
            out = _earlier(this, resume)
            config = _resumed(out, {**removed, **given})
            check_trackers(str(config.get("track", "")))
        this.check_is_up()
        _say(f"the app's bundle is {this.bundle()}; devices that trust only another bundle refuse this one")
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
    """Return a message for the operator: the run goes on, and how to stop it."""
    if not superlink.runs:
        return "stopped before the run was submitted"
    flwr = f"FLWR_HOME={server.folder / 'flwr'} flwr stop {superlink.runs[-1].run_id} {CONNECTION}"
    return f"no longer followed; the run goes on, its history: {trial.history.path}\nto stop it: {flwr}"


def _earlier(server: Server, run: str) -> Path:
    """Return the folder of an earlier run. `run` is its path, or "last" for the server's newest run."""
    if run != "last":
        return Path(run).absolute()
    histories = sorted((server.folder / "runs").glob(f"*/{FILE_NAME}"))
    if not histories:
        folder = server.folder / "runs"
        raise ServerError(f"resume = last: there is no run in {folder}; give the run's folder")
    return histories[-1].parent


def _resumed(folder: Path, given: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """Return the run config with which an earlier run resumes.

    Parameters
    ----------
    folder : Path
        The folder of the earlier run.
    given : Mapping[str, ConfigValue]
        The settings that differ from the earlier run's.

    Raises
    ------
    ServerError
        If the folder holds no history.
    ValueError
        If `given` changes a setting that a resume must not change.
    """
    history = RunHistory(folder / FILE_NAME)
    history.read(skip_damaged=True)
    if not history.settings:
        raise ServerError(
            f"resume = {folder}: holds no {FILE_NAME} with the settings of a run; there is nothing to resume"
        )
    changes = {key.replace("-", "_"): value for key, value in given.items()}
    check_same_run(history.settings, history.settings | changes)
    known = history.settings.keys() & RunSettings.model_fields.keys()
    before = {key.replace("_", "-"): history.settings[key] for key in known}
    return {**before, **given, "output-dir": str(folder)}


def _greeting(server: Server) -> str:
    option = "" if server.folder == default_folder(PROGRAM) else f" --dir {server.folder}"
    more = f"\n  metrics                {url(server.metrics)}" if server.metrics else ""
    return f"""\
up at {server.address}; devices verify this server with {server.authority}
  invite a device        cohort server invite NAME{option}
  or join with a key of its own, on the device:
                         cohort client join --server {server.address} --ca ca.crt
  list clients           cohort server list{option}
  train                  cohort server run --set num-clients=N{option}
  train another app      FLWR_HOME={server.folder / "flwr"} flwr run APP {CONNECTION} --stream{more}"""


@contextlib.contextmanager
def _exit_on_error() -> Iterator[None]:
    try:
        yield
    except (EngineError, ServerError, ValueError, OSError) as error:
        _fail(str(error))


def _load(folder: Path | None) -> Server:
    return Server.load((folder or default_folder(PROGRAM)).absolute())


def _say(text: str) -> None:
    typer.echo(f"{datetime.now():%H:%M:%S} {printable(text, None, keep=_LINES)}")


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(printable(message, None, keep=_LINES), err=True)
    raise typer.Exit(code)
