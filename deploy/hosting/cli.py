"""The commands of `cohort server`: up, move, invite, register, revoke, list, run, runs, stop and bundle."""

import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from deploy.device.invitation import SUFFIX
from deploy.engines.engine import EngineError
from deploy.engines.superlink import RunningSuperLink
from deploy.fleet.storage.postgres import DatabaseError, checked_url
from deploy.flower.app_folder import app_folder
from deploy.flower.config import default_config
from deploy.hosting.following import FollowedSuperLink, LeftRuns, resumed
from deploy.hosting.listing import RUN_ID, Share, columns, describe, read_runs, shares
from deploy.hosting.programs import MARK, Programs
from deploy.hosting.server import (
    CONNECTION,
    FILE,
    PAGE_PORT,
    STRANGER,
    Server,
    ServerError,
    default_server_folder,
)
from deploy.metrics.collector import Sources
from deploy.metrics.http_endpoint import check_address, serving, url
from deploy.metrics.readiness import SuperLink
from deploy.option_types import LINES, AsJson, Finite, Track, argument, fail, optional
from deploy.page.command import Page
from deploy.page.process import PageProcess
from deploy.page.secret_link import kept_token
from deploy.processes.groups import processes_with, wait_until
from deploy.processes.ports import LOOPBACK, is_free
from deploy.processes.signals import raise_on_signals
from deploy.processes.systemd_units import install, unit
from deploy.runs.display import report
from deploy.runs.follow_and_resume import Watcher, train
from deploy.runs.trials import Trial, new_run_folder, parse_setting, with_absolute_paths
from deploy.tls.certificates import AUTHORITY_KEY
from server.history import FILE_NAME, RunHistory
from server.settings import RunSettings
from server.tracking import check_trackers
from strategies.clients.printable import printable

# Why `run` refuses these settings.
_NOT_SET = {"output-dir": "the folder is made in runs/ of the server's folder", "resume": "use --resume"}
OFF = "off"  # the value of --metrics, --database and --runs that ends what an earlier value began
RECLAIM_TIMEOUT = 5.0  # seconds that the processes of a killed server may take to end

server = typer.Typer(no_args_is_help=True, help="Run a server for real devices.")

Dir = Annotated[
    Path | None,
    optional(
        "--dir",
        help="Folder of the server. (default: /var/lib/cohort-server for root, else "
        "~/.local/state/cohort-server)",
    ),
]


@server.callback()
def _server() -> None:
    """Run a server for real devices: certificates, clients, runs."""


@server.command()
def up(
    host: Annotated[
        list[str] | None,
        optional(
            help="Name or address under which devices reach this machine; may be repeated. "
            "Required the first time."
        ),
    ] = None,
    port: Annotated[int | None, optional(min=1, max=65535, help="Port for devices. (default: 9092)")] = None,
    control_port: Annotated[
        int | None,
        optional(min=1, max=65535, help="Port for the operator, on this machine only. (default: 9093)"),
    ] = None,
    listen: Annotated[
        str | None, optional(help="Address on which to listen for devices. (default: 0.0.0.0)")
    ] = None,
    metrics: Annotated[
        str | None,
        optional(
            metavar="[HOST:]PORT",
            help="Offer metrics for Prometheus at this address; without HOST, to this machine only. off: no "
            "metrics. (default: off)",
        ),
    ] = None,
    database: Annotated[
        str | None,
        optional(
            metavar="URL",
            help="Keep the server's state in this PostgreSQL database, which several machines may share: "
            "postgresql://USER@HOST/NAME?passfile=FILE. off: in a file of the folder. (default: off)",
        ),
    ] = None,
    runs: Annotated[
        str | None,
        optional(
            metavar="FOLDER",
            help="Keep the runs in this folder, on storage that all machines share: if one dies, another one "
            "carries on its runs. Needs --database. off: in the server's folder. (default: off)",
        ),
    ] = None,
    page: Page = False,
    page_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the page, on this machine only.")
    ] = PAGE_PORT,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Write a systemd unit for this user's server, and exit.")
    ] = False,
    folder: Dir = None,
) -> None:
    """Run the server until Ctrl-C. Clients and options are saved: later, `up` is enough.

    Only --dir, --page and --page-port are not saved.
    """
    where = (folder or default_server_folder()).absolute()
    given = {
        "hosts": host and tuple(host),
        "port": port,
        "control_port": control_port,
        "listen": listen,
        "metrics": "" if metrics == OFF else metrics,
        "runs": "" if runs == OFF else runs and str(Path(runs).absolute()),
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if systemd and os.geteuid() == 0:
        fail("--systemd as root: run it as the user who operates the server; its unit is that user's")
    try:
        if database is not None:
            changes["database"] = "" if database == OFF else checked_url(database)
        before = asdict(Server.load(where)) if (where / FILE).exists() or not host else {"folder": where}
        this = Server(**{**before, **changes})
        this.check_database()
        this.check_runs()
        with this.claimed():
            if systemd:
                _prepare(this)
                shown = ("--page", "--page-port", str(page_port)) if page else ()
                command = ["server", "up", "--dir", str(where), *shown]
                text = unit("Cohort: a server for devices", command, where, system=False)
                typer.echo(install("cohort-server", text, system=False))
            else:
                _serve(this, page_port if page else None)
    except (ServerError, ValueError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"dir = {where}: {error}")
    except KeyboardInterrupt:
        _say("stopped")


@server.command()
def move(
    database: Annotated[
        str,
        typer.Option(
            metavar="URL", help="An empty PostgreSQL database: postgresql://USER@HOST/NAME?passfile=FILE."
        ),
    ],
    folder: Dir = None,
) -> None:
    """Move the server's state from its folder into PostgreSQL: clients, keys, invitations and runs.

    The server must be stopped. `up` uses the database afterwards; the file superlink.db stays as it is.
    """
    from deploy.hosting.move import move as move_state

    with _exit_on_error():
        this = _load(folder)
        with this.claimed():
            _check_ended(this)
            count = move_state(this, checked_url(database))
    typer.echo(f"{count} rows are in {database}; to go on: {this.command('up')}")


def _check_ended(this: Server) -> None:
    """Raise ServerError if processes of a server run, after they have had time to end."""
    if not wait_until(lambda: not processes_with(MARK, str(this.folder)), RECLAIM_TIMEOUT):
        raise ServerError(f"dir = {this.folder}: the server of this folder is running already")


def _serve(this: Server, page_port: int | None) -> None:
    """Run a server until Ctrl-C, with the live page if its port is given."""
    _check_ended(this)
    for name, each in (("port", this.port), ("control-port", this.control_port)):
        if not is_free(each):
            raise ServerError(f"{name} = {each}: taken by another program; choose another one")
    _prepare(this)
    programs = Programs(this, _say)
    with raise_on_signals(lambda _: KeyboardInterrupt()), _metrics(this, programs), programs:
        _say(_greeting(this))
        with contextlib.ExitStack() as stack:
            shown = page_port and stack.enter_context(
                PageProcess(this.folder, kept_token(this.page_secret), page_port, _say, this.page_secret)
            )
            left = LeftRuns(this, _say)
            while True:
                time.sleep(1)
                left.check()
                if shown:
                    shown.check()


def _prepare(this: Server) -> None:
    """Check and save the options of a server, and make or renew its certificate."""
    if this.metrics:
        check_address(this.metrics)
    if done := this.save():
        _say(f"{done} a certificate for {', '.join(this.hosts)}")
        key = this.authority.with_name(AUTHORITY_KEY)
        _say(f"{key} is needed only for a renewal or another --host: keep it elsewhere")


@contextlib.contextmanager
def _metrics(server: Server, programs: Programs) -> Iterator[None]:
    """Offer the server's metrics inside a `with` block, if the operator wants them."""
    if not server.metrics:
        yield
        return
    superlink = SuperLink(
        control=server.control,
        fleet=server.local_fleet,
        fleet_name=LOOPBACK,
        authority=server.authority,
        secret=server.control_secret,
    )
    shared = server.shared_registry

    def devices() -> dict[str, int]:
        try:
            return shared.devices() if shared else {}
        except DatabaseError:  # the SuperLink does not list its nodes either
            return {}

    sources = Sources(server.folder / "runs", superlink, lambda: programs.starts, devices)
    with serving(server.metrics, sources):
        yield


@server.command()
def invite(
    name: Annotated[str, typer.Argument(help="Name of the new client.")],
    out: Annotated[Path | None, optional(help="File to write. (default: NAME.invitation)")] = None,
    expires: Annotated[
        float,
        typer.Option(
            metavar="DAYS", click_type=Finite(min=0.001, max=365), help="Days until the invitation expires."
        ),
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

    Without --any-app, the device will run only this project's app as it is now; `cohort client trust`
    changes that.
    """
    file = out or Path(f"{name}{SUFFIX}")
    with _exit_on_error():
        this = _load(folder)
        this.invite(name, file, expires, "" if any_app else this.bundle())
    typer.echo(f"{file}: copy it to the device and run there: cohort client join --invitation {file.name}")


@server.command()
def bundle(
    app: Annotated[
        Path | None, argument(help="Folder of the app's pyproject.toml. (default: this project)")
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
        this = _load(folder)
        _warn_of_damaged(this)
        this.revoke(name)
    typer.echo(f"{name} is revoked")


@server.command("list")
def list_clients(as_json: AsJson = False, folder: Dir = None) -> None:
    """List the clients and nodes: state, last seen, and what each did in the newest run.

    The list holds registered and invited clients, of all front ends, and nodes that are not registered here;
    with such nodes, the exit code is 1.
    """
    with _exit_on_error():
        this = _load(folder)
        _warn_of_damaged(this)
        nodes = this.nodes()
        newest = next((run for run in reversed(read_runs(this.folder / "runs")) if run.trained), None)
    done = shares(newest) if newest else {}
    online = sum(node.state == "online" for node in nodes)
    registered = len(this.clients())
    strangers = [node for node in nodes if node.name.startswith(STRANGER)]
    if as_json:
        found = [
            {**asdict(node), "in_newest_run": asdict(done.get(node.name, Share())) if newest else None}
            for node in nodes
        ]
        run = newest.path.parent.name if newest else None
        typer.echo(
            json.dumps({"newest_run": run, "registered": registered, "online": online, "clients": found})
        )
    else:
        of_run = ("selected", "used", "contribution", "samples") if newest else ()
        rows: list[Sequence[str]] = [("client", "state", "last seen", *of_run)]
        for node in nodes:
            share = done.get(node.name, Share())
            contribution = f"{100 * share.contribution:.1f} %"
            did = (str(share.selected), str(share.used), contribution, share.samples)
            seen = "now" if node.state == "online" else node.last_seen or "never"
            cells = (node.name, node.state, seen, *(did if newest else ()))
            rows.append(tuple(map(printable, cells)))
        if nodes:
            typer.echo("\n".join(columns(rows)))
        if newest:
            typer.echo(f"selected, used: rounds of the newest run, {printable(newest.path.parent.name)}")
            typer.echo("contribution: the client's share of the total weight of all used updates")
            typer.echo("samples: as the client claims; 'used as' if another number determines its weights")
        typer.echo(f"{registered} registered, {online} online")
    if strangers:
        fail(f"{len(strangers)} not registered here: find out who registered them; `revoke` removes them", 1)


def _warn_of_damaged(this: Server) -> None:
    for file, reason in this.registry.damaged().items():
        typer.echo(f"{file}: is damaged and ignored ({reason}); delete it", err=True)


@server.command("runs")
def list_runs(as_json: AsJson = False, folder: Dir = None) -> None:
    """List the runs of `cohort server run`, the newest last."""
    with _exit_on_error():
        runs = [describe(run) for run in read_runs(_load(folder).folder / "runs")]
    if as_json:
        typer.echo(json.dumps(runs))
        return
    rows: list[Sequence[str]] = [("run", "state", "round", "accuracy", "selector")]
    for run in runs:
        accuracy = run["test_accuracy"]
        shown = "-" if accuracy is None else f"{100 * accuracy:.1f} %"
        cells = (run["run"], run["state"], f"{run['round']}/{run['rounds']}", shown, run["selector"])
        rows.append(tuple(map(printable, cells)))
    typer.echo("\n".join(columns(rows)) if runs else "there is no run yet")


@server.command()
def stop(
    run: Annotated[
        str, typer.Argument(help="Name or folder of the run, last (the newest), or Flower's id of any run.")
    ],
    folder: Dir = None,
) -> None:
    """Stop RUN. Its checkpoints stay: `cohort server run --resume RUN` continues it."""
    with _exit_on_error():
        this = _load(folder)
        flower_run = _flower_run(this, run)
        this.flwr("stop", flower_run)
    name = f"{_earlier(this, run).name}: " if run == "last" else f"{run}: "
    typer.echo(f"{name}stopped (Flower run {flower_run})")


def _flower_run(server: Server, run: str) -> str:
    """Return Flower's id of a run. `run` is as in the command `stop`."""
    if run != "last" and not (server.folder / "runs" / run).is_dir() and run.isdecimal():
        return run
    folder = _earlier(server, run)
    if not (folder / FILE_NAME).exists():
        raise ServerError(f"run = {run}: must be the name or folder of a run, last, or Flower's id of a run")
    try:
        return (folder / RUN_ID).read_text()
    except OSError:
        raise ServerError(
            f"run = {run}: holds no {RUN_ID}; give Flower's id, which `flwr list` prints"
        ) from None


@server.command()
def run(
    setting: Annotated[
        list[str] | None,
        optional(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the run config in pyproject.toml; may be repeated.",
        ),
    ] = None,
    track: Track = None,
    resume: Annotated[
        str | None,
        optional(
            metavar="RUN",
            help="Resume an earlier run: its name, its folder, or last. Its settings are kept; num-rounds, "
            "target-accuracy, eligible, track and the deadlines may change.",
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
        for key in ("output-dir", "resume"):
            if key in given:
                raise ValueError(f"set = {key}={given[key]}: {_NOT_SET[key]}")
        runs = this.folder / "runs"
        if resume is None:
            config = {**removed, **given}
            checked = {**config, "output-dir": str(runs)}  # the run gets a folder when nothing is wrong
            RunSettings.from_run_config({**default_config(app_folder()), **checked})
        else:
            earlier = _earlier(this, resume)
            config = resumed(earlier, {**removed, **given})
            check_trackers(str(config.get("track", "")))
        this.check_is_up()
        _say(f"app bundle {this.bundle()}: a device that agreed to another one refuses it")
        with new_run_folder(runs) if resume is None else contextlib.nullcontext(earlier) as out:
            trial = Trial(out.name, {**config, "output-dir": str(out)}, RunHistory(out / FILE_NAME))
            superlink = FollowedSuperLink(this, out)
            try:
                with superlink:
                    train(superlink, [trial], Watcher(_say), at_once=False)
            except KeyboardInterrupt:
                fail(_how_to_stop(this, superlink, trial), 130)
    if trial.history.trained:
        Console(highlight=False, markup=False).print(report([trial.history]))
    if not trial.history.finished:
        fail(_how_to_resume(this, trial), 1)
    typer.echo(f"history and models: {trial.folder}")
    typer.echo(f"figure:             cohort plot {trial.folder}")
    typer.echo(f"page:               cohort page {trial.folder}")


def _how_to_stop(server: Server, superlink: RunningSuperLink, trial: Trial) -> str:
    """Return a message that says that the run goes on, and how to stop it."""
    if not superlink.runs:
        return "stopped before the run was submitted"
    command = server.command("stop", superlink.runs[-1].run_id)
    return f"the run goes on without this command; history: {trial.history.path}\nto stop the run: {command}"


def _how_to_resume(server: Server, trial: Trial) -> str:
    """Return how to resume a run that did not finish, or why a resume would change nothing."""
    if trial.can_go_on:
        return f"to resume: {server.command('run', '--resume', str(trial.folder))}"
    if trial.is_unchanged:
        why = "no round changed the model"
    else:
        why = "no round is left" if trial.has_checkpoint else "there is no checkpoint"
    return f"{why}, so there is nothing to resume; start a new run"


def _earlier(server: Server, run: str) -> Path:
    """Return the folder of an earlier run. `run` is its name, its path, or "last" for the newest run."""
    if run != "last":
        named = server.folder / "runs" / run
        return named if named.is_dir() else Path(run).absolute()
    histories = sorted((server.folder / "runs").glob(f"*/{FILE_NAME}"))
    if not histories:
        folder = server.folder / "runs"
        raise ServerError(f"run = last: there is no run in {folder}; give the run's folder")
    return histories[-1].parent


def _greeting(server: Server) -> str:
    option, home = server.command().removeprefix("cohort server"), shlex.quote(str(server.folder / "flwr"))
    more = f"\n  metrics                {url(server.metrics)}" if server.metrics else ""
    return f"""\
up at {server.address}; devices verify this server with {server.authority}
  invite a device        cohort server invite NAME{option}
  or join with a key of its own, on the device:
                         cohort client join --server {server.address} --ca ca.crt
  list clients           cohort server list{option}
  train                  cohort server run --set num-clients=N --set clients-per-round=K{option}
  list runs              cohort server runs{option}
  stop a run             cohort server stop RUN{option}
  train another app      FLWR_HOME={home} flwr run APP {CONNECTION} --stream{more}"""


@contextlib.contextmanager
def _exit_on_error() -> Iterator[None]:
    try:
        yield
    except (EngineError, ServerError, DatabaseError, ValueError, OSError) as error:
        fail(str(error))


def _load(folder: Path | None) -> Server:
    return Server.load((folder or default_server_folder()).absolute())


def _say(text: str) -> None:
    typer.echo(f"{datetime.now():%H:%M:%S} {printable(text, None, keep=LINES)}")
