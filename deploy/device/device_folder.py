"""A device's folder, which only its owner can read: the key, the authority's certificate and the settings."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

from cryptography import x509

from client.device_limits import properties_of
from client.training_note import TRAINING_FILE
from deploy.device.enrolment import enrol
from deploy.device.invitation import Invitation, check_bundle, check_name
from deploy.device.reconnect import ADMITTED, CA, KEY, NODE_CONFIG, SERVERS, SETTINGS, servers_of
from deploy.flower.commands import python
from deploy.flower.config import ConfigValue, write_config
from deploy.flower.flwr_cli import flower_environment
from deploy.json_text import parse_json
from deploy.tls import certificates
from deploy.tls.addresses import addresses_of
from strategies.checkpoint import replacing
from strategies.clients.printable import LONGEST_NAME

SECRET_FILE = "secret"  # the file with the secret of the client's random answers (see `client.privacy`)
PAUSE_FILE = "paused"  # this file exists while the device is paused
TRAINED = "trained.json"  # how often the device has trained (see `client.training_note`)
# Numbers that limit what the client reveals, each an entry of the node config (see `client.privacy`)
PRIVACY = ("group_epsilon", "noise_epsilon", "loss_bound", "norm_bound")
# The folders in which systemd makes the folders of system units; no other user can write into these.
UNIT_FOLDERS = (Path("/var/lib"), Path("/var/lib/private"))
MIN_MEMORY = 100  # MB, the smallest memory limit; a SuperNode alone takes more
# The environment variables that set the threads of OpenMP (torch, scikit-learn), OpenBLAS and MKL (NumPy)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Settings:
    """The options of `cohort client join`. The constructor raises ValueError if a value is not allowed."""

    name: str
    """The client's name. If the device's key is registered under another name, the server uses that one."""
    server: str
    """The addresses of the server's Fleet API with which the device joined (`deploy.tls.addresses`)."""
    nice: int = 10
    """The scheduling niceness of the client's processes, in [0, 19]."""
    threads: int = 1
    """The number of threads for computing, in [1, 1024]."""
    memory_limit: int | None = None
    """The memory limit of all the client's processes together, MB, >= `MIN_MEMORY`; None for no limit."""
    min_battery: float = 30.0
    """A charge of the battery, %, in [0, 100]. Below this charge the device trains only while charging."""
    max_temperature: float = 80.0
    """A temperature of the processor, °C, in [0, 150]. Above this temperature the device does not train."""
    allow_metered: bool = False
    """Whether the device trains while it is on a metered network."""
    partition: str = ""
    """"i/N" with i in 0..N-1: trains on part i of N of the task's own data. Must be "" if `data` is set."""
    data: str = ""
    """The path of an .npz file with the device's own samples (see `client.data_file`); "" for no file."""
    group: str = ""
    """The client's group, which the client reports to the server; "" for no group."""
    private_group: str = ""
    """The group for selectors with private groups, reported by randomised response only; "" for none."""
    group_epsilon: float | None = None
    """The largest ε > 0 with which the client reports its private group; None: any ε."""
    noise_epsilon: float | None = None
    """ε > 0 of the noise on each reported loss and norm (see `client.privacy`); None: no noise."""
    loss_bound: float | None = None
    """> 0, to which a reported loss is clipped; None: no clipping, and with `noise_epsilon` no report."""
    norm_bound: float | None = None
    """> 0, to which a reported norm is clipped; None: no clipping, and with `noise_epsilon` no report."""
    cost: float | None = None
    """The cost of taking part in a round, >= 0, in the operator's unit; None: not reported."""
    energy: float | None = None
    """The energy for taking part in a round, >= 0, in the operator's unit; None: not reported."""
    properties: str = ""
    """Properties that the client reports, which a run can require: "region=eu,tags=day|night"."""
    bundle: str = ""
    """The SHA-256 of the only app bundle that the device runs; "" for any app that the server sends."""

    def __post_init__(self) -> None:
        check_name(self.name)
        addresses_of(self.server)
        for name, low, high in (("nice", 0, 19), ("threads", 1, 1024), ("min_battery", 0, 100),
                                ("max_temperature", 0, 150)):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name.replace('_', '-')} = {value}: must be between {low} and {high}")
        for name in ("group", "private_group"):
            check_group(name, getattr(self, name))
        for name in ("cost", "energy"):
            if (number := getattr(self, name)) is not None and not 0 <= number < inf:
                raise ValueError(f"{name} = {number}: must be a finite number of at least 0")
        for name in PRIVACY:
            if (number := getattr(self, name)) is not None and not 0 < number < inf:
                raise ValueError(f"{name.replace('_', '-')} = {number}: must be a finite number above 0")
        properties_of({"properties": self.properties})
        if self.memory_limit is not None and self.memory_limit < MIN_MEMORY:
            raise ValueError(f"memory-limit = {self.memory_limit}: must be at least {MIN_MEMORY} (MB)")
        if self.bundle:
            check_bundle(self.bundle)
        if self.partition and self.data:
            raise ValueError(f"partition = {self.partition}: cannot be combined with data = {self.data}")
        self.part()

    def check_data(self) -> str:
        """Return a description of the samples in `data`, "" without a file.

        Raises ValueError if the file is missing or cannot be used.
        """
        if not self.data:
            return ""
        if not Path(self.data).is_file():
            raise ValueError(f"data = {self.data}: there is no such file")
        from client.data_file import describe  # imported only if there is a file to read

        return describe(Path(self.data))

    def part(self) -> tuple[int, int] | None:
        """Return i and N of `partition`; None if `partition` is empty."""
        if not self.partition:
            return None
        index, slash, count = self.partition.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ValueError(
                f"partition = {self.partition!r}: must be i/N with i in 0..N-1, for example 0/10"
            )
        return int(index), int(count)


@dataclass(frozen=True)
class Device:
    """A device's folder, and what `cohort client` does with it."""

    folder: Path
    """The folder, which `accept` or `introduce` makes."""

    def check_owner(self) -> None:
        """Raise ValueError if the folder belongs to another user, who could replace what this process writes.

        Root may use a folder directly in /var/lib that belongs to the user of the systemd unit.
        """
        if os.geteuid() == 0 and self.folder.resolve().parent in UNIT_FOLDERS:
            return
        if why := certificates.foreign_owner(self.folder):
            raise ValueError(f"state-dir = {self.folder}: {why}")

    def key_line(self) -> str:
        """Return the device's public key as the line of text that the operator registers."""
        return (self.folder / f"{KEY}.pub").read_text().strip()

    @property
    def has_joined(self) -> bool:
        """Whether the device has joined. The settings are written last, after the key and the certificate."""
        return (self.folder / SETTINGS).exists()

    @property
    def authority(self) -> Path:
        """The file with the certificate of the authority that signed the server's certificate."""
        return self.folder / CA

    def servers(self) -> list[str]:
        """Return all addresses at which this device tries to reach its server."""
        return servers_of(self.folder, self.settings().server)

    def settings(self) -> Settings:
        """Return the saved settings."""
        path = self.folder / SETTINGS
        try:
            saved = parse_json(path.read_text())
            if not isinstance(saved, dict):
                raise ValueError("must hold a JSON object")
        except FileNotFoundError:
            raise ValueError(
                f"state-dir = {self.folder}: no client has joined here; see cohort client join --help"
            ) from None
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        try:
            return Settings(**saved)
        except TypeError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(
            f"{self.folder / SETTINGS}: cannot be read: {error}; join again with another --state-dir"
        )

    def accept(self, invitation: Path) -> Settings:
        """Join with an invitation, delete the invitation's file, and return the settings.

        The device makes a key, and the server registers the key in exchange for the invitation's token.
        """
        offer = Invitation.read(invitation)
        if self.has_joined and self.settings().name != offer.name:
            raise ValueError(
                f"invitation = {invitation}: {self.folder} belongs to {self.settings().name}, which has "
                "already joined: use `cohort client join` without options; a second client on this device "
                "needs an invitation and a --state-dir of its own"
            )
        settings = replace(self._joining(offer.name, offer.server), bundle=offer.bundle)
        _check_authority(offer.ca, invitation)
        # The key is kept even if this method is interrupted: once the server has registered a key for a
        # token, it accepts no other key with this token.
        joining = self.folder / f"joining-{hashlib.sha256(offer.token.encode()).hexdigest()[:16]}"
        certificates.private_folder(self.folder)
        if not (joining / f"{KEY}.pub").exists():
            shutil.rmtree(joining, ignore_errors=True)
            certificates.write_client_key(joining, KEY)
        (joining / CA).write_text(offer.ca)
        enrol(
            addresses_of(offer.server),
            joining / CA,
            offer.token,
            (joining / f"{KEY}.pub").read_text().strip(),
        )
        self._take_key(partial(_copy_key, joining))
        (self.folder / SERVERS).unlink(missing_ok=True)
        (self.folder / CA).write_text(offer.ca)
        self._save(settings)
        invitation.unlink()
        # The key's first copy is deleted last. As long as the invitation exists, it may be used again, and
        # the server accepts it with this key only.
        shutil.rmtree(joining)
        return settings

    def introduce(self, name: str, server: str, ca: Path) -> Settings:
        """Prepare to join without an invitation, and return the settings.

        If the device has no key, a key is made. The operator must register this key.
        """
        settings = self._joining(name, server)
        try:
            authority = ca.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"ca = {ca}: cannot be read: {error}") from error
        _check_authority(authority, ca)
        if not (self.folder / KEY).exists():
            self.renew_key()
        elif not self.has_joined or settings != self.settings() or self.authority.read_text() != authority:
            (self.folder / ADMITTED).unlink(missing_ok=True)  # another server, or another name there
        (self.folder / SERVERS).unlink(missing_ok=True)
        (self.folder / CA).write_text(authority)
        self._save(settings)
        return settings

    def trust(self, bundle: str) -> None:
        """Let this device run only the app whose bundle has this hash, or any app if the hash is "".

        If the SuperNode is running, this takes effect at the next run.
        """
        self._save(replace(self.settings(), bundle=bundle))

    def renew_key(self) -> None:
        """Replace the device's key by a new key, which the operator must register."""
        self._take_key(lambda folder: certificates.write_client_key(folder, KEY))

    def _joining(self, name: str, server: str) -> Settings:
        """Return settings with this name and server.

        All other settings keep their saved values, or their defaults if the device has not joined before.
        """
        if self.has_joined:
            return replace(self.settings(), name=name, server=server)
        return Settings(name, server)

    def _take_key(self, write: Callable[[Path], object]) -> None:
        """Replace the device's key pair by a new pair, which `write` writes into a folder."""
        certificates.private_folder(self.folder)
        new = self.folder / "new"
        shutil.rmtree(new, ignore_errors=True)  # left by an interrupted call
        try:
            write(new)
            if os.geteuid() == 0:  # the systemd service runs as the folder's owner, and must read the key
                owner = self.folder.stat()
                # A link that the owner put in the key's place is not followed.
                os.chown(new / KEY, owner.st_uid, owner.st_gid, follow_symlinks=False)
            for name in (f"{KEY}.pub", KEY):
                (new / name).replace(self.folder / name)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        (self.folder / ADMITTED).unlink(missing_ok=True)

    def limits(self) -> dict[str, ConfigValue]:
        """Return the entries of the node config that limit training, as `client.device_limits` reads them."""
        settings = self.settings()
        return {
            "pause-file": str(self.folder / PAUSE_FILE),
            "min-battery": settings.min_battery,
            "max-temperature": settings.max_temperature,
            "allow-metered": settings.allow_metered,
        }

    def prepare(self, settings: Settings) -> list[str]:
        """Save the settings, write the node config, and return the command that runs the supervisor."""
        self._save(settings)
        config: dict[str, ConfigValue] = {
            "client-id": settings.name,
            "secret-file": str(self.folder / SECRET_FILE),  # made on first use
            TRAINING_FILE: str(self.folder / TRAINED),
            **self.limits(),
        }
        if part := settings.part():
            config["partition-id"], config["num-partitions"] = part
        mine = {
            "group": settings.group,
            "private-group": settings.private_group,
            "properties": settings.properties,
        }
        config |= {name: text for name, text in mine.items() if text}
        numbers = {name.replace("_", "-"): getattr(settings, name) for name in ("cost", "energy", *PRIVACY)}
        config |= {name: number for name, number in numbers.items() if number is not None}
        if settings.data:
            config["data"] = str(Path(settings.data).absolute())
        write_config(self.folder / NODE_CONFIG, config)
        for name in ("flwr", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
        return python("-m", "deploy.device.reconnect", str(self.folder))

    def environment(self, settings: Settings) -> dict[str, str]:
        """Return the environment for the supervisor and its programs."""
        return {
            **flower_environment(self.folder / "flwr", self.folder / "tmp"),
            **dict.fromkeys(THREAD_VARIABLES, str(settings.threads)),
            "MALLOC_ARENA_MAX": "2",  # otherwise glibc gives each thread a heap of its own
        }

    def _save(self, settings: Settings) -> None:
        # Even if the power fails, the file has either its old or its new content.
        with replacing(self.folder / SETTINGS) as file:
            file.write(json.dumps(asdict(settings), indent=1).encode())


def check_group(name: str, group: str) -> None:
    """Raise ValueError if a group's name cannot be reported (see `strategies.clients.reports.Report`)."""
    if group and not (len(group) <= LONGEST_NAME and group.isprintable() and group == group.strip()):
        raise ValueError(
            f"{name.replace('_', '-')} = {group!r}: must be up to {LONGEST_NAME} printable characters, "
            "without blanks at its ends"
        )


def _copy_key(source: Path, folder: Path) -> None:
    """Copy the key pair in a folder to a new folder."""
    certificates.private_folder(folder)
    certificates.write_private(folder / KEY, (source / KEY).read_bytes())
    shutil.copyfile(source / f"{KEY}.pub", folder / f"{KEY}.pub")


def _check_authority(text: str, source: Path) -> None:
    """Raise ValueError if a text, read from `source`, is not the certificate of an authority (PEM)."""
    try:
        certificate = x509.load_pem_x509_certificate(text.encode())
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound):
        is_authority = False
    if not is_authority:
        raise ValueError(f"{source}: must hold the certificate of the authority (the server's ca.crt)")
