"""The Flower apps that benchmarks run: of copied files, or this repository's app with another ClientApp."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from deploy.flower.app_folder import app_folder
from deploy.flower.submission import copy_app

PYPROJECT = """
[project]
name = "benchmark"
version = "1.0.0"
license = {{ text = "Apache-2.0" }}
[tool.flwr.app]
publisher = "cohort"
[tool.flwr.app.components]
serverapp = "{module}:server"
clientapp = "{module}:client"
[tool.flwr.app.config]
"""


def write_app(folder: Path, config: Mapping[str, object], *sources: Path) -> Path:
    """Write an app of the files `sources` into a new folder, and return the folder.

    The last file has the `server` and the `client`. `config` are the settings of a run, with their defaults.
    """
    folder.mkdir()
    text = PYPROJECT.format(module=sources[-1].stem)
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
    (folder / "pyproject.toml").write_text(text)
    for source in sources:
        shutil.copy(source, folder)
    return folder


def app_with_client(folder: Path, client: ModuleType) -> Path:
    """Copy this repository's app to a folder, with the ClientApp of a module, and return the folder."""
    copy_app(app_folder(), folder, folder)
    name = client.__name__.rpartition(".")[2]
    shutil.copyfile(
        str(client.__file__), folder / "client" / f"{name}.py"
    )  # Flower ships client/ to all nodes
    project = folder / "pyproject.toml"
    own, text = 'clientapp = "client.app:app"', project.read_text()
    if own not in text:
        raise RuntimeError(f"{project}: {own} is not in it")
    project.write_text(text.replace(own, f'clientapp = "client.{name}:app"'))
    return folder
