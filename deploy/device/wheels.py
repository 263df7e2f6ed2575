"""Are there wheels for a device, in the versions of the lock? `python -m deploy.device.wheels` asks the index.

A device without a compiler, or with little patience, can install only what was compiled for it. uv resolves
what a client needs as for the device (the lock as constraints, wheels only); nothing is installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

APP = Path(__file__).resolve().parents[2]


class Target(NamedTuple):
    """A system that devices run."""

    name: str
    python: str
    platform: str  # as uv calls it: the machine, and the newest manylinux tag that its C library takes


TARGETS = (
    Target("Raspberry Pi OS 12, Debian 12 (bookworm), 64-bit", "3.11", "aarch64-manylinux_2_36"),
    Target("Raspberry Pi OS 13, Debian 13 (trixie), 64-bit", "3.13", "aarch64-manylinux_2_40"),
)


def wheels(target: Target, extras: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return the wheels of each package that a client needs on this system.

    Parameters
    ----------
    target : Target
        The system.
    extras : tuple[str, ...]
        Of pyproject.toml: what a client needs besides the distribution's own dependencies.

    Returns
    -------
    dict[str, list[str]]
        By "name version", the names of the files that fit. They may say "none-any" (pure Python, fits all).

    Raises
    ------
    LookupError
        If something has no wheel that fits, with what uv says.
    """
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml"),
        "--system-certs",  # what pip trusts, too: an index behind a company's proxy
        *("--python-platform", target.platform, "--python-version", target.python, "--only-binary", ":all:"),
        *("--constraints", str(APP / "requirements.lock"), str(APP / "pyproject.toml")),
        *(f"--extra={extra}" for extra in extras),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError(f"{target.name}: {done.stderr.strip()}")
    return {
        f"{package['name']} {package['version']}": [
            wheel["url"].rpartition("/")[2] for wheel in package["wheels"]
        ]
        for package in tomllib.loads(done.stdout)["packages"]
    }


def main() -> int:
    """Print what there is for each system; return 1 if something is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.device.wheels", description="Look for aarch64 wheels."
    )
    parser.add_argument(
        "--extra", action="append", default=[], help="an extra of pyproject.toml, such as demo"
    )
    extras = tuple(parser.parse_args().extra)
    complete = True
    for target in TARGETS:
        try:
            found = wheels(target, extras)
        except LookupError as error:
            complete = False
            print(error)
            continue
        compiled = [package for package, files in found.items() if "none-any" not in files[0]]
        print(f"{target.name}, Python {target.python}: {len(found)} packages, all with wheels")
        print(f"  compiled for it ({len(compiled)}): {', '.join(compiled)}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
