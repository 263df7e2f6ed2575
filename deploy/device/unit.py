"""The systemd unit that keeps a client running over crashes, logouts and reboots."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploy.device.state import Settings

NAME = "cohort-client.service"
STOP_TIMEOUT = 20  # s; more than a SuperNode needs to sign off
# Restrictions of a system unit; a user's systemd lacks the rights for most of them.
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

    Parameters
    ----------
    settings : Settings
        Niceness, threads and memory limit become limits of the unit.
    folder : Path
        The device's folder; for a system unit it must lie in /var/lib.
    system : bool
        Whether it is a system unit (started at boot) or a user unit.

    Raises
    ------
    ValueError
        If a system unit would not own its folder.
    """
    if system and folder.parent != Path("/var/lib"):
        raise ValueError(f"state-dir = {folder}: must lie in /var/lib for a system unit")
    cohort = Path(sys.executable).parent / "cohort"
    command = [str(cohort), "client", "join", "--state-dir", str(folder)]
    limits = [f"Nice={settings.nice}", f"CPUQuota={100 * settings.threads}%"]
    if settings.memory_limit is not None:
        # The kernel kills a process that needs more; the others and the unit go on.
        limits += [f"MemoryMax={settings.memory_limit}M", "MemorySwapMax=0", "OOMPolicy=continue"]
    lines = [
        "[Unit]",
        "Description=Cohort: a client of a federation",
        # The clock must be right: certificates and signatures contain the time.
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
    """Write the unit where systemd looks for it, and let systemd verify it.

    Returns
    -------
    tuple[Path, str]
        The file, and the messages of `systemd-analyze verify`: "" if there are none or no such program.
    """
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = (Path("/etc/systemd/system") if system else config / "systemd" / "user") / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path, verify(path, system=system)


def verify(path: Path, *, system: bool) -> str:
    """Return the messages of `systemd-analyze verify`: "" if there are none or no such program."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return ""
    manager = "--system" if system else "--user"
    done = subprocess.run(
        [program, "verify", manager, str(path)],
        env={
            "XDG_RUNTIME_DIR": tempfile.gettempdir(),
            **os.environ,
        },  # required, but not every login has one
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip()


def _quoted(text: str) -> str:
    """Quote a word of a command as systemd reads it."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if plain != text or any(each.isspace() for each in text) else plain
