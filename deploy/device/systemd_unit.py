"""The systemd unit of a client: starts the client again after crashes, logouts and reboots."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.device.device_folder import Settings

NAME = "cohort-client.service"  # the file name of the unit
STOP_TIMEOUT = 20  # s that the client may take to end; a SuperNode needs less time to sign off
# The restrictions of a system unit. A user's systemd lacks the rights for most of them.
_HARDENING = """\
# A user that exists only while the unit runs; the state folder belongs to that user.
DynamicUser=yes
StateDirectory={folder}
StateDirectoryMode=0700
ProtectHome=read-only
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
CapabilityBoundingSet=
"""


def unit(settings: Settings, folder: Path, *, system: bool) -> str:
    """Return the text of the unit.

    `folder`: the device's folder. For a system unit, the folder must be directly in /var/lib. `system`:
    whether to write a system unit (started at boot) or a user unit.
    """
    if system and folder.parent != Path("/var/lib"):
        raise ValueError(f"state-dir = {folder}: must be a folder directly in /var/lib for a system unit")
    cohort = Path(sys.executable).parent / "cohort"
    command = [str(cohort), "client", "join", "--state-dir", str(folder)]
    limits = [f"Nice={settings.nice}", f"CPUQuota={100 * settings.threads}%"]
    if settings.memory_limit is not None:
        # If the unit needs more memory, the kernel kills one of its processes. The unit itself goes on.
        limits += [f"MemoryMax={settings.memory_limit}M", "MemorySwapMax=0", "OOMPolicy=continue"]
    lines = [
        "[Unit]",
        "Description=Cohort: a client of a federation",
        # Start after the clock is set, because certificates and signatures contain times.
        *(["Wants=network-online.target", "After=network-online.target time-sync.target"] if system else []),
        "",
        "[Service]",
        f"ExecStart={' '.join(map(_quoted, command))}",
        "Restart=always",
        "RestartSec=5",
        f"TimeoutStopSec={STOP_TIMEOUT}",
        "KillMode=mixed",
        *limits,
        "NoNewPrivileges=yes",
        "LockPersonality=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "SystemCallArchitectures=native",
        "UMask=0077",
        *(_HARDENING.format(folder=folder.name).splitlines() if system else []),
        "",
        "[Install]",
        f"WantedBy={'multi-user' if system else 'default'}.target",
        "",
    ]
    return "\n".join(lines)


def install(text: str, *, system: bool) -> tuple[Path, str]:
    """Write the unit into the folder where systemd looks for units, and verify the unit.

    Returns the file of the unit, and the messages of `verify`.
    """
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = (Path("/etc/systemd/system") if system else config / "systemd" / "user") / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path, verify(path, system=system)


def verify(path: Path, *, system: bool) -> str:
    """Return what `systemd-analyze verify` complains about; "" if nothing, or if that program is missing."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return ""
    manager = "--system" if system else "--user"
    done = subprocess.run(
        [program, "verify", manager, str(path)],
        # systemd-analyze requires XDG_RUNTIME_DIR, but not every login has it.
        env={"XDG_RUNTIME_DIR": tempfile.gettempdir(), **os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip()


def _quoted(text: str) -> str:
    """Quote an argument of a command, so that systemd passes the argument on unchanged."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if plain != text or any(each.isspace() for each in text) else plain
