"""Prepares the submission of an app to Flower: copies its files, writes its run config, makes the command."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.flower.config import write_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploy.flower.config import ConfigValue

BUNDLED_SUFFIXES = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
BUNDLED_NAMES = {"LICENSE", ".gitignore"}


def run_command(
    app: Path, connection: str, run_config: Mapping[str, ConfigValue], folder: Path, leave_out: Path
) -> list[str]:
    """Write the files of a run into a folder, and return the command that submits the run.

    The command prints the run's log and ends when the run ends.

    `folder`: the folder for the copy of the app (`app/`, which must not exist yet) and the run config
    (`config.toml`). It is made if it is missing. `leave_out`: a folder that is not copied, even if it lies
    inside the app's folder.
    """
    copy_app(app, folder / "app", leave_out)
    write_config(folder / "config.toml", run_config)
    command = ["flwr", "run", str(folder / "app"), connection, "--stream"]
    return [*command, "--run-config", str(folder / "config.toml")]


def bundle_hash(app: Path, environment: Mapping[str, str], leave_out: Path) -> str:
    """Return the SHA-256 hash, in hexadecimal, of the bundle (FAB) that Flower builds from an app.

    `environment`: the environment of the command `flwr build`. Its PATH must find `flwr`. `leave_out`: a
    folder that is not bundled, even if it lies inside the app's folder.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy_app(app, Path(temporary, "app"), leave_out)
        done = subprocess.run(
            ["flwr", "build", "--app", "app"],
            cwd=temporary,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ValueError(f"app = {app}: {(done.stderr or done.stdout).strip()}")
        (bundle,) = Path(temporary).glob("*.fab")
        return hashlib.sha256(bundle.read_bytes()).hexdigest()


def copy_app(app: Path, target: Path, leave_out: Path) -> None:
    """Copy the files that Flower may bundle.

    In the app's own folder, Flower would examine every file, also those of a virtual environment, for several
    seconds in each run.

    `target`: the folder for the copy, which must not exist yet. `leave_out`: a folder that is not copied, as
    a path without symbolic links. Hidden folders, `__pycache__` and virtual environments are not copied
    either.
    """
    app = app.resolve()
    for parent, folders, files in os.walk(app):
        source = Path(parent)
        folders[:] = [
            each
            for each in folders
            if each != "__pycache__"
            and not each.startswith(".")
            and not (source / each / "pyvenv.cfg").exists()
            and source / each != leave_out
        ]
        copy = target / source.relative_to(app)
        copy.mkdir(parents=True)
        for each in files:
            if Path(each).suffix in BUNDLED_SUFFIXES or each in BUNDLED_NAMES:
                shutil.copyfile(source / each, copy / each)
