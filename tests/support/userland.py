"""A Debian for arm64 on a machine with another processor. Its programs run under emulation."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .environments import ROOT

FOLDER = Path(os.environ.get("COHORT_ARM64", "/tmp/cohort-arm64"))
PATIENCE = 1500.0  # seconds for one command, on a machine that may be busy
# The folders of the machine are mounted in a namespace of this one command, so nothing has to be unmounted.
_ENTER = """
for each in proc sys dev; do mount --rbind "/$each" "$0/$each" || exit; done
exec chroot "$0" "$@"
"""


def why_not():
    """Return why no program of the userland can run, None if programs can."""
    if os.geteuid() != 0:
        return "needs root, to mount folders and to change the root folder"
    if not (FOLDER / "usr" / "bin" / "env").exists():
        return f"COHORT_ARM64 = {FOLDER}: must be the folder of a Debian for arm64 (CONTRIBUTING.md)"
    return None


class Userland:
    """The Debian in a folder, with this repository in `/opt/cohort`, as docs/devices.md has it.

    Parameters
    ----------
    folder : Path
        The root folder of the Debian.
    """

    def __init__(self, folder):
        self.folder = folder
        self.source = folder / "opt" / "cohort"

    def command(self, *words):
        """Return the command that runs a program of the userland. Its process id is that of the program."""
        kept = [
            f"{name}={value}"
            for name, value in os.environ.items()
            if re.match("PIP_|SSL_CERT_FILE$|REQUESTS_CA_BUNDLE$", name) or name.lower().endswith("_proxy")
        ]
        # pip would compile all modules of all packages, under emulation; Python compiles those it imports.
        changed = ["HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "PIP_NO_COMPILE=1"]
        enter = ["unshare", "--mount", "sh", "-c", _ENTER, str(self.folder)]
        return [*enter, "/usr/bin/env", "-i", *kept, *changed, *words]

    def shell(self, script):
        """Run a script in `/opt/cohort` and return its output."""
        done = subprocess.run(
            self.command("sh", "-c", f"cd /opt/cohort && {script}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout

    def install(self):
        """Install this repository with the commands of docs/devices.md, unless that was done.

        An earlier environment is updated.
        """
        (install,) = re.findall(r"^cd /opt/cohort && sudo python3 -m venv .*$", _guide(), re.MULTILINE)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        names = [name for name in listed.decode().split("\0") if name and not name.startswith("tests/")]
        files = {name: (ROOT / name).read_bytes() for name in names if (ROOT / name).exists()}
        state = hashlib.sha256(repr((install, files)).encode()).hexdigest()
        stamp = self.source / ".installed"
        if stamp.exists() and stamp.read_text() == state:
            return
        self.source.mkdir(parents=True, exist_ok=True)
        for each in self.source.iterdir():
            if each.name != ".venv":
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        for name, content in files.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_bytes(content)
        self.shell(install.replace("sudo ", ""))
        stamp.write_text(state)

    def install_torch(self):
        """Install the version of torch that docs/devices.md names, unless that was done.

        A program of this machine unpacks the wheels. Under emulation, pip takes minutes.
        """
        (version,) = set(re.findall(r"pip install torch==([0-9.]+)", _guide()))
        (packages,) = self.source.glob(".venv/lib/python*/site-packages")
        if (packages / f"torch-{version}.dist-info").exists():
            return
        python = packages.parent.name.removeprefix("python")
        command = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--system-certs"]
        platform = ("--python-platform", "aarch64-manylinux_2_36", "--python-version", python)
        command += [*platform, "--target", str(packages), f"torch=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr


def _guide():
    return (ROOT / "docs" / "devices.md").read_text()
