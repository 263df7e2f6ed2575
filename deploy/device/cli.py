"""The commands of `cohort client` on a device: join, pause, resume, trust and status."""

import os
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from client.device_limits import why_unavailable
from client.training_note import read_note
from deploy.device.default_folder import default_folder
from deploy.device.device_folder import PAUSE_FILE, TRAINED, Device, Settings
from deploy.device.invitation import check_bundle
from deploy.device.reconnect import ADMITTED, STATUS, DeviceSupervisor
from deploy.json_text import parse_json
from deploy.option_types import fail, optional
from deploy.processes.systemd_units import install, unit
from deploy.tls.addresses import addresses_of
from deploy.tls.probe import REFUSED, none_reachable, unreachable
from strategies.clients.printable import printable

UNIT = "cohort-client"
client = typer.Typer(no_args_is_help=True, help="Take part in a federation with this device.")

StateDir = Annotated[
    Path | None,
    optional(
        "--state-dir",
        "--dir",
        help="Folder of this device's key and settings. (default: /var/lib/cohort-client for root, "
        "else ~/.local/state/cohort-client)",
    ),
]


@client.callback()
def _client() -> None:
    """Take part in a federation with this device."""


@client.command()
def join(
    context: typer.Context,
    server: Annotated[
        str | None,
        optional(
            metavar="HOST:PORT,...",
            help="Address of the server, or the addresses of its front ends with commas between them.",
        ),
    ] = None,
    ca: Annotated[
        Path | None, optional(help="The server's ca.crt, which verifies the server's certificate.")
    ] = None,
    invitation: Annotated[
        Path | None,
        optional(
            help="A file from `cohort server invite`, instead of --server, --ca and --name. It works once. "
            "The server must be reachable."
        ),
    ] = None,
    name: Annotated[str | None, optional(help="Name of this client. (default: the host name)")] = None,
    state_dir: StateDir = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make a new key, which the operator must register.")
    ] = False,
    data: Annotated[
        Path | None, optional(help="An .npz file with this device's own inputs and labels.")
    ] = None,
    partition: Annotated[
        str | None,
        optional(
            metavar="I/N", help="Instead of --data: part I (0 to N-1) of N parts of the task's own data."
        ),
    ] = None,
    group: Annotated[
        str | None, optional(help="This client's group, a name or a number; the server learns it.")
    ] = None,
    private_group: Annotated[
        str | None, optional(help="This client's group for flics-private; the server does not learn it.")
    ] = None,
    group_epsilon: Annotated[
        float | None,
        optional(help="Largest ε with which this client reports its --private-group. (default: any)"),
    ] = None,
    noise_epsilon: Annotated[
        float | None,
        optional(
            help="Report losses and norms with Gaussian noise of this ε each; needs the bounds. "
            "(default: no noise)"
        ),
    ] = None,
    loss_bound: Annotated[
        float | None,
        optional(
            help="Clip reported losses to this number; with noise and without a bound, none is reported."
        ),
    ] = None,
    norm_bound: Annotated[
        float | None,
        optional(
            help="Clip reported norms to this number; with noise and without a bound, none is reported."
        ),
    ] = None,
    cost: Annotated[
        float | None, optional(help="Cost of this client in a round, for FLICS' budgets.")
    ] = None,
    energy: Annotated[
        float | None, optional(help="Energy of this client in a round, for FLICS' budgets.")
    ] = None,
    properties: Annotated[
        str | None, optional(help='Properties by which runs can choose clients: "region=eu,tags=day|night".')
    ] = None,
    nice: Annotated[
        int | None, optional(help="Scheduling niceness of this client's processes, 0 to 19. (default: 10)")
    ] = None,
    threads: Annotated[int | None, optional(help="Threads for computing. (default: 1)")] = None,
    memory_limit: Annotated[
        int | None,
        optional(metavar="MB", help="Memory for all processes of this client together. (default: no limit)"),
    ] = None,
    min_battery: Annotated[
        float | None,
        optional(metavar="PERCENT", help="Do not train below this charge, unless charging. (default: 30)"),
    ] = None,
    max_temperature: Annotated[
        float | None,
        optional(
            metavar="CELSIUS", help="Do not train while the processor is hotter than this. (default: 80)"
        ),
    ] = None,
    allow_metered: Annotated[
        bool | None,
        optional("--allow-metered/--no-metered", help="Train on metered networks too. (default: no)"),
    ] = None,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Write a systemd unit for this client, and exit.")
    ] = False,
) -> None:
    """Join a federation and take part until Ctrl-C. Options are saved: later, `join` alone is enough."""
    device = Device((state_dir or default_folder()).absolute())
    settable = {each.name for each in fields(Settings)} - {"name", "server"}
    changes: dict[str, Any] = {
        key: value for key, value in context.params.items() if key in settable and value is not None
    }
    if data is not None:
        changes |= {"partition": "", **changes, "data": str(data.absolute())}
    if partition is not None:
        changes.setdefault("data", "")
    try:
        device.check_owner()
        if invitation is not None and (server, ca, name, new_key) != (None, None, None, False):
            raise ValueError(
                f"invitation = {invitation}: already contains --server, --ca and --name, and brings a new key"
            )
        addresses = [] if server is None else addresses_of(server)
        if (server is None) != (ca is None):
            raise ValueError("server, ca: must be given together (or use --invitation, which contains both)")
        # Check the options before anything is written: a wrong option must not use up an invitation.
        before = device.settings() if device.has_joined else Settings("device", "server:1")
        samples = replace(before, **changes).check_data()
        if invitation is not None:
            settings = device.accept(invitation)
        elif server is not None and ca is not None:
            for each in addresses:
                if (problem := unreachable(each, ca) or "").startswith(REFUSED):
                    raise ValueError(f"server = {each}: {problem}")
            known = device.settings().name if device.has_joined else _host_name()
            settings = device.introduce(name or known, server, ca)
        else:
            settings = device.settings()
            if name is not None:
                raise ValueError(f"name = {name}: this device has joined as {settings.name}; to rename it, "
                                 "join again with --server and --ca")  # fmt: skip
        if new_key:
            device.renew_key()
        settings = replace(settings, **changes)
        command = device.prepare(settings)
        text = unit_of(settings, device.folder, system=os.geteuid() == 0) if systemd else ""
    except (OSError, ValueError) as error:
        fail(str(error))
    if data is not None:
        typer.echo(f"data: {samples}")
    if not (settings.data or settings.partition):
        typer.echo(
            "this client has no data yet: use --data FILE.npz, or --partition I/N for the task's own data",
            err=True,
        )
    if invitation is None:
        if not (device.folder / ADMITTED).exists():
            _introduce(device, settings)
        elif server is not None:
            known = f"registered with {settings.server} as {settings.name} already"
            typer.echo(f"this device is {known}; it keeps its key")
    if systemd:
        try:
            typer.echo(install(UNIT, text, system=os.geteuid() == 0))
        except OSError as error:
            fail(str(error))
        return
    # Under systemd, which would restart this process at once, the supervisor waits for a better certificate.
    if "INVOCATION_ID" not in os.environ:
        problem = none_reachable(device.servers(), device.authority) or ""
        if REFUSED in problem:
            fail(f"server = {problem}")
    os.nice(max(0, settings.nice - os.nice(0)))  # systemd may have set the niceness already
    # The supervisor replaces this process, because the imports of this process would waste memory.
    os.execve(command[0], command, device.environment(settings))


@client.command()
def pause(state_dir: StateDir = None) -> None:
    """Stop training until `resume`; the device stays connected."""
    device = _joined(state_dir)
    (device.folder / PAUSE_FILE).touch()
    typer.echo(f"{device.settings().name} is paused")


@client.command()
def resume(state_dir: StateDir = None) -> None:
    """Take part in training again."""
    device = _joined(state_dir)
    (device.folder / PAUSE_FILE).unlink(missing_ok=True)
    typer.echo(f"{device.settings().name} takes part again")


@client.command()
def trust(
    bundle: Annotated[
        str,
        typer.Argument(help="Hash of an app, as `cohort server bundle` prints it, or `any` for all apps."),
    ],
    state_dir: StateDir = None,
) -> None:
    """Let this device run only the app whose bundle has this hash. Takes effect at the next run."""
    device = _joined(state_dir)
    try:
        device.trust("" if bundle == "any" else check_bundle(bundle))
    except (OSError, ValueError) as error:
        fail(str(error))
    typer.echo(f"{device.settings().name} runs {_app(device.settings())}")


@client.command()
def status(state_dir: StateDir = None) -> None:
    """Print whether this device is connected and would train now. Exit with 1 if the device is not online."""
    device = _joined(state_dir)
    settings = device.settings()
    last = _last_status(device.folder / STATUS) or {"state": "off", "text": "not running", "since": ""}
    text, since = printable(last["text"]), printable(last["since"])
    typer.echo(f"{settings.name}: {text}" + (f", since {since}" if since else ""))
    reason = why_unavailable(device.limits())
    typer.echo(f"training: {'no, ' + reason if reason else 'whenever the server asks'}")
    note = read_note(device.folder / TRAINED)
    times = f"{note.trained} times, last at {printable(note.last)}" if note.trained else "not yet"
    typer.echo(f"trained: {times}")
    if note.problem:
        typer.echo(f"last message: failed, {printable(note.problem)}")
    typer.echo(f"app: {_app(settings)}")
    for each in device.servers():
        typer.echo(f"server: {each}, {unreachable(each, device.authority) or 'reachable'}")
    typer.echo(f"state and log: {device.folder}")
    raise typer.Exit(0 if last["state"] == "online" else 1)


def _app(settings: Settings) -> str:
    """Describe which apps the device runs."""
    if not settings.bundle:
        return "any that the server sends (`cohort client trust HASH` allows one only)"
    return f"only the one with the hash {settings.bundle}"


def _last_status(path: Path) -> dict[str, str] | None:
    """Return the last status that the supervisor wrote; None if there is none or the supervisor has died."""
    try:
        status: dict[str, str] = parse_json(path.read_text())
        if status["state"] != "off":
            # After a power failure, for example, another process may have the supervisor's process id.
            command = Path(f"/proc/{status['pid']}/cmdline").read_bytes()
            return status if DeviceSupervisor.__module__.encode() in command else None
    except (OSError, ValueError, KeyError):
        return None
    return status


def _introduce(device: Device, settings: Settings) -> None:
    """Print the command with which the operator registers this device."""
    command = ["cohort", "server", "register", settings.name, *device.key_line().split()[:2]]
    typer.echo("The operator of the server must register this device once with this command:")
    typer.echo(f"\n  {shlex.join(command)}\n")


def unit_of(settings: Settings, folder: Path, *, system: bool) -> str:
    """Return the text of a device's unit, see `deploy.processes.systemd_units.unit`."""
    limits = [f"Nice={settings.nice}", f"CPUQuota={100 * settings.threads}%"]
    if settings.memory_limit is not None:
        # If the unit needs more memory, the kernel kills one of its processes. The unit itself goes on.
        limits += [f"MemoryMax={settings.memory_limit}M", "MemorySwapMax=0", "OOMPolicy=continue"]
    command = ["client", "join", "--state-dir", str(folder)]
    return unit("Cohort: a client of a federation", command, folder, limits, system=system)


def _joined(state_dir: Path | None) -> Device:
    device = Device((state_dir or default_folder()).absolute())
    try:
        device.check_owner()
        device.settings()
    except ValueError as error:
        fail(str(error))
    return device


def _host_name() -> str:
    return os.uname().nodename.partition(".")[0]
