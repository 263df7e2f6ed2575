"""Systemd units of clients and servers, which systemd starts again after crashes, logouts and reboots."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

STOP_TIMEOUT = 20  # s that a program may take to end; a SuperNode needs less time to sign off
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


def unit(
    description: str, arguments: Sequence[str], folder: Path, limits: Sequence[str] = (), *, system: bool
) -> str:
    """Return the text of a unit that runs `cohort` with these arguments.

    `folder`: the program's folder. For a system unit, the folder must be directly in /var/lib. `limits`:
    lines of the section Service. `system`: whether it is a system unit (started at boot) or a user unit.
    """
    if system and folder.parent != Path("/var/lib"):
        raise ValueError(f"state-dir = {folder}: must be a folder directly in /var/lib for a system unit")
    command = [str(Path(sys.executable).parent / "cohort"), *arguments]
    lines = [
        "[Unit]",
        f"Description={description}",
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


def install(name: str, text: str, *, system: bool) -> str:
    """Write the unit `name` where systemd looks for it, and return what the user should know, in lines."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = (Path("/etc/systemd/system") if system else config / "systemd" / "user") / f"{name}.service"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    complaints = verify(path, system=system)
    manager, user = ("systemctl", "") if system else ("systemctl --user", "--user ")
    lines = [
        f"{path}: written" + (f"; systemd-analyze verify says:\n{complaints}" if complaints else ""),
        f"start it, now and at every boot:  {manager} daemon-reload && {manager} enable --now {name}",
        *(() if system else ("let it run while you are logged out:  loginctl enable-linger",)),
        f"show its messages:  journalctl {user}-fu {name}",
    ]
    return "\n".join(lines)


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
