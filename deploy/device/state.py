"""A device's folder, readable by its owner only: key, authority's certificate, settings."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509

from deploy.device.invitation import Invitation, check_name, check_server
from deploy.device.supervisor import ADMITTED, CA, KEY, NODE_CONFIG, SETTINGS
from deploy.flower.commands import python
from deploy.flower.config import write_config
from deploy.flower.flwr_cli import flower_environment
from deploy.tls import certificates
from strategies.checkpoint import replacing

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploy.flower.config import ConfigValue

SECRET_FILE = "secret"  # seed of the client's private draws
PAUSE_FILE = "paused"
MIN_MEMORY = 100  # MB; a SuperNode alone takes more
# The numbers of threads of OpenMP (torch, scikit-learn), OpenBLAS and MKL (NumPy).
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Settings:
    """How a device takes part: the options of `cohort client join`, saved for later starts."""

    name: str
    """The client's name; the server uses the name under which the key was registered."""
    server: str
    """Address of the SuperLink's Fleet API, "host:port"."""
    nice: int = 10
    """Scheduling niceness of its processes, in [0, 19]."""
    threads: int = 1
    """Threads for computing, >= 1."""
    memory_limit: int | None = None
    """Memory of all its processes together, MB; None for no limit."""
    min_battery: float = 30.0
    """%, in [0, 100]: below this charge it does not train, unless charging."""
    max_temperature: float = 80.0
    """Degrees Celsius of the processor, in [0, 150]: above it does not train."""
    allow_metered: bool = False
    """Whether it trains on metered networks."""
    partition: str = ""
    """"i/N": it trains on part i of N of the task's own data, i in 0..N-1."""
    data: str = ""
    """Instead of `partition`: an .npz file with its own samples (see `client.own_data`)."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_server(self.server)
        for name, low, high in (("nice", 0, 19), ("threads", 1, 1024), ("min_battery", 0, 100),
                                ("max_temperature", 0, 150)):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name.replace('_', '-')} = {value}: must be between {low} and {high}")
        if self.memory_limit is not None and self.memory_limit < MIN_MEMORY:
            raise ValueError(f"memory-limit = {self.memory_limit}: must be at least {MIN_MEMORY} (MB)")
        if self.partition and self.data:
            raise ValueError(f"partition = {self.partition}: cannot be combined with data = {self.data}")
        self.part()

    def check_data(self) -> None:
        """Raise ValueError if the file `data` does not exist."""
        if self.data and not Path(self.data).is_file():
            raise ValueError(f"data = {self.data}: there is no such file")

    def part(self) -> tuple[int, int] | None:
        """Return (i, N) of `partition`, None without it."""
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
    """A device's folder."""

    folder: Path

    def key_line(self) -> str:
        """Return the public key in the form that the operator registers."""
        return (self.folder / f"{KEY}.pub").read_text().strip()

    @property
    def has_joined(self) -> bool:
        """Whether the folder holds a key, a certificate and settings."""
        return (self.folder / SETTINGS).exists()

    @property
    def authority(self) -> Path:
        """The authority's certificate, which verifies the server's."""
        return self.folder / CA

    def settings(self) -> Settings:
        """Return the saved settings.

        Raises
        ------
        ValueError
            If the device has not joined, or the file is damaged.
        """
        path = self.folder / SETTINGS
        try:
            return Settings(**json.loads(path.read_text()))
        except FileNotFoundError:
            raise ValueError(
                f"state-dir = {self.folder}: no client has joined here; see cohort client join --help"
            ) from None
        except (OSError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path}: cannot be read: {error}; join again with another --state-dir"
            ) from error

    def accept(self, invitation: Path) -> Settings:
        """Take over the key and the settings of an invitation, and delete its file.

        Raises
        ------
        ValueError
            If it is invalid, or this device has joined as another client or with this key.
        """
        offer = Invitation.read(invitation)
        if self.has_joined and (
            self.settings().name != offer.name or certificates.public_key_of(offer.key) == self.key_line()
        ):
            raise ValueError(
                f"invitation = {invitation}: {self.folder} belongs to {self.settings().name}, which has "
                "already joined: use `cohort client join` without options; a second client on this device "
                "needs an invitation and a --state-dir of its own"
            )
        settings = self._joining(offer.name, offer.server)
        _check_authority(offer.ca, invitation)
        self._take_key(lambda folder: certificates.import_client_key(folder, KEY, offer.key))
        (self.folder / CA).write_text(offer.ca)
        self._save(settings)  # before the file is deleted, or a crash could lose the key
        invitation.unlink()
        return settings

    def introduce(self, name: str, server: str, ca: Path) -> Settings:
        """Prepare a device to join with a key of its own, which is made if there is none.

        Raises
        ------
        ValueError
            If the name, the address or the certificate is invalid.
        """
        settings = self._joining(name, server)
        try:
            authority = ca.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"ca = {ca}: cannot be read: {error}") from error
        _check_authority(authority, ca)
        if not (self.folder / KEY).exists():
            self.renew_key()
        (self.folder / CA).write_text(authority)
        self._save(settings)
        return settings

    def renew_key(self) -> None:
        """Replace the key by a new one, which the operator must register."""
        self._take_key(lambda folder: certificates.write_client_key(folder, KEY))

    def _joining(self, name: str, server: str) -> Settings:
        """Return the settings with which it joins; a device that has joined before keeps all others."""
        if self.has_joined:
            return replace(self.settings(), name=name, server=server)
        return Settings(name, server)

    def _take_key(self, write: Callable[[Path], object]) -> None:
        """Write a key pair into a folder of its own, then replace the old one by it."""
        certificates.private_folder(self.folder)
        new = self.folder / "new"
        shutil.rmtree(new, ignore_errors=True)  # of an interrupted call
        try:
            write(new)
            for name in (f"{KEY}.pub", KEY):
                (new / name).replace(self.folder / name)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        (self.folder / ADMITTED).unlink(missing_ok=True)

    def limits(self) -> dict[str, ConfigValue]:
        """Return the limits on training, as `client.device` reads them."""
        settings = self.settings()
        return {
            "pause-file": str(self.folder / PAUSE_FILE),
            "min-battery": settings.min_battery,
            "max-temperature": settings.max_temperature,
            "allow-metered": settings.allow_metered,
        }

    def prepare(self, settings: Settings) -> list[str]:
        """Save the settings, write what a SuperNode needs, and return the supervisor's command."""
        self._save(settings)
        config: dict[str, ConfigValue] = {
            "client-id": settings.name,
            "secret-file": str(self.folder / SECRET_FILE),  # made on first use
            **self.limits(),
        }
        if part := settings.part():
            config["partition-id"], config["num-partitions"] = part
        if settings.data:
            config["data"] = str(Path(settings.data).absolute())
        write_config(self.folder / NODE_CONFIG, config)
        for name in ("flwr", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
        return python("-m", "deploy.device.supervisor", str(self.folder))

    def environment(self, settings: Settings) -> dict[str, str]:
        """Return the environment of the supervisor."""
        programs = [Path(sys.executable).parent]  # Flower finds its programs by the PATH
        return {
            **flower_environment(programs, self.folder / "flwr", self.folder / "tmp"),
            **dict.fromkeys(THREAD_VARIABLES, str(settings.threads)),
            "MALLOC_ARENA_MAX": "2",  # otherwise each thread has a heap of its own
        }

    def _save(self, settings: Settings) -> None:
        with replacing(self.folder / SETTINGS) as file:  # atomic: the power may fail at any time
            file.write(json.dumps(asdict(settings), indent=1).encode())


def default_folder() -> Path:
    """Return the default folder: the system's for root, else the user's."""
    if os.geteuid() == 0:
        return Path("/var/lib/cohort-client")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "cohort-client"


def _check_authority(text: str, source: Path) -> None:
    try:
        certificate = x509.load_pem_x509_certificate(text.encode())
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound):
        is_authority = False
    if not is_authority:
        raise ValueError(f"{source}: must hold the certificate of the authority (the server's ca.crt)")
