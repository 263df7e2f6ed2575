"""How an app is handed to Flower as a run: a copy of its files, its run config, and the command."""

from __future__ import annotations

import os
import shutil
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
    """Write the files of a run into a new folder, and return the command that runs it and ends with it.

    Parameters
    ----------
    app : Path
        The folder of the app's pyproject.toml.
    connection : str
        The SuperLink's name in Flower's config.toml.
    run_config : Mapping[str, ConfigValue]
        What differs from the app's defaults.
    folder : Path
        For a copy of the app and the run config.
    leave_out : Path
        A folder that does not belong to the app, should it lie inside.
    """
    copy_app(app, folder / "app", leave_out)
    write_config(folder / "config.toml", run_config)
    command = ["flwr", "run", str(folder / "app"), connection, "--stream"]
    return [*command, "--run-config", str(folder / "config.toml")]


def copy_app(app: Path, target: Path, leave_out: Path) -> None:
    """Copy the files that Flower may bundle.

    Flower itself looks at every file below the app's folder before it leaves most of them out; with a virtual
    environment among them, that takes several seconds a run.
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
