"""What a device keeps in a folder that only its owner reads: key, server's certificate, settings."""

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
from deploy.flower.connection import flower_environment
from deploy.tls import certificates
from strategies.checkpoint import replacing

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploy.flower.config import ConfigValue

SECRET_FILE = "secret"  # of the client's private draws
PAUSE_FILE = "paused"
MIN_MEMORY = 100  # MB; less than a SuperNode alone
# Who computes with how many threads: OpenMP (torch, scikit-learn), OpenBLAS and MKL (NumPy).
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Settings:
    """How a device takes part. What `cohort client join` was told is remembered for the next time."""

    name: str
    """The client's name in the federation; the one it was registered under counts for the server."""
    server: str
    """"host:port" of the SuperLink's Fleet API."""
    nice: int = 10
    """In [0, 19]: how far its processes stand back for others."""
    threads: int = 1
    """>= 1, for computing."""
    memory_limit: int | None = None
    """MB for all its processes together; None for no limit."""
    min_battery: float = 30.0
    """%, in [0, 100]: with less, and not charging, it does not train."""
    max_temperature: float = 80.0
    """degrees Celsius of the processor, in [0, 150]: above, it does not train."""
    allow_metered: bool = False
    """Whether it trains on a network that costs by the byte."""
    partition: str = ""
    """"i/N": of a task's own data it holds the i-th of N parts, i in 0..N-1; or ..."""
    data: str = ""
    """... the path of an .npz file with its own samples (see `client.own_data`)."""

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
            raise ValueError(f"partition = {self.partition}: not together with data = {self.data}")
        self.part()

    def check_data(self) -> None:
        """Raise ValueError if there is no such file as `data` names."""
        if self.data and not Path(self.data).is_file():
            raise ValueError(f"data = {self.data}: there is no such file")

    def part(self) -> tuple[int, int] | None:
        """Return (i, N) of `partition`."""
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
        """Return the public key, as the operator registers it."""
        return (self.folder / f"{KEY}.pub").read_text().strip()

    @property
    def has_joined(self) -> bool:
        """Whether there is a key, a certificate and settings."""
        return (self.folder / SETTINGS).exists()

    @property
    def authority(self) -> Path:
        """The certificate of the authority that signed the server's."""
        return self.folder / CA

    def settings(self) -> Settings:
        """Return what is remembered.

        Raises
        ------
        ValueError
            If the device has not joined, or the file is not what `prepare` wrote.
        """
        path = self.folder / SETTINGS
        try:
            return Settings(**json.loads(path.read_text()))
        except FileNotFoundError:
            raise ValueError(
                f"state-dir = {self.folder}: no client has joined here; cohort client join --help says how"
            ) from None
        except (OSError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path}: cannot be read: {error}; join anew with another --state-dir"
            ) from error

    def accept(self, invitation: Path) -> Settings:
        """Take over what an invitation holds, and delete it.

        Raises
        ------
        ValueError
            If it is none, or this device has joined as another client, or with this very key.
        """
        offer = Invitation.read(invitation)
        if self.has_joined and (
            self.settings().name != offer.name or certificates.public_key_of(offer.key) == self.key_line()
        ):
            raise ValueError(
                f"invitation = {invitation}: {self.folder} belongs to {self.settings().name}, which has "
                "joined already: `cohort client join` alone goes on; a second client on this device needs an "
                "invitation and a --state-dir of its own"
            )
        settings = self._joining(offer.name, offer.server)
        _check_authority(offer.ca, invitation)
        self._take_key(lambda folder: certificates.import_client_key(folder, KEY, offer.key))
        (self.folder / CA).write_text(offer.ca)
        self._remember(settings)  # before the file goes: without either the key would be lost
        invitation.unlink()
        return settings

    def introduce(self, name: str, server: str, ca: Path) -> Settings:
        """Make a key of its own for a device that is to join, if it has none yet.

        Raises
        ------
        ValueError
            If the name, the address or the certificate is none.
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
        self._remember(settings)
        return settings

    def renew_key(self) -> None:
        """Make a new key in place of the one that there may be; the server has yet to hear of it."""
        self._take_key(lambda folder: certificates.write_client_key(folder, KEY))

    def _joining(self, name: str, server: str) -> Settings:
        """Return the settings with which it joins: a device that has joined before keeps its others."""
        if self.has_joined:
            return replace(self.settings(), name=name, server=server)
        return Settings(name, server)

    def _take_key(self, write: Callable[[Path], object]) -> None:
        """Let a key pair be written into a folder of its own, then put it in the place of the last."""
        certificates.private_folder(self.folder)
        new = self.folder / "new"
        shutil.rmtree(new, ignore_errors=True)  # of one that was cut short
        try:
            write(new)
            for name in (f"{KEY}.pub", KEY):
                (new / name).replace(self.folder / name)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        (self.folder / ADMITTED).unlink(missing_ok=True)

    def limits(self) -> dict[str, ConfigValue]:
        """Return when this device does not train, as `client.device` reads it."""
        settings = self.settings()
        return {
            "pause-file": str(self.folder / PAUSE_FILE),
            "min-battery": settings.min_battery,
            "max-temperature": settings.max_temperature,
            "allow-metered": settings.allow_metered,
        }

    def prepare(self, settings: Settings) -> list[str]:
        """Write down the settings and what a SuperNode needs; return the command that supervises it."""
        self._remember(settings)
        config: dict[str, ConfigValue] = {
            "client-id": settings.name,
            "secret-file": str(self.folder / SECRET_FILE),  # made when it is first needed
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
        """Return the environment in which the supervisor runs."""
        programs = [Path(sys.executable).parent]  # Flower finds its programs by the PATH
        return {
            **flower_environment(programs, self.folder / "flwr", self.folder / "tmp"),
            **dict.fromkeys(THREAD_VARIABLES, str(settings.threads)),
            "MALLOC_ARENA_MAX": "2",  # else a thread more is a heap more
        }

    def _remember(self, settings: Settings) -> None:
        with replacing(self.folder / SETTINGS) as file:  # whenever the power goes
            file.write(json.dumps(asdict(settings), indent=1).encode())


def default_folder() -> Path:
    """Return where a device's state lies: for root of the system, else of the user."""
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
