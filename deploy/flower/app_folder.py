"""The folder that `flwr run` bundles: the app's pyproject.toml, and the code that the nodes need."""

import shutil
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

CODE = Path(__file__).resolve().parents[2]  # the folder that contains `deploy`: a clone, or site-packages
_SHIPPED = CODE / "deploy" / "app.toml"  # the wheel's copy of pyproject.toml; a clone has no such file


def app_folder() -> Path:
    """Return the folder of the app.

    If the code runs from a clone, this is the clone. If the wheel was installed, the code lies in
    site-packages beside all other packages, so the app is copied to a temporary folder, which is removed when
    this process ends.
    """
    return Path(_assembled().name) if _SHIPPED.is_file() else CODE


@cache
def _assembled() -> TemporaryDirectory[str]:
    folder = TemporaryDirectory(prefix="cohort-app-")
    target = Path(folder.name)
    shutil.copyfile(_SHIPPED, target / "pyproject.toml")
    for pattern in tomllib.loads(_SHIPPED.read_text())["tool"]["flwr"]["app"]["fab-include"]:
        for file in CODE.glob(pattern):
            copy = target / file.relative_to(CODE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return folder
