"""The digest of a trial's result: it covers everything that decides the result.

That is the settings and the seed, the content of the files that settings name, the data, the sources that a
batched simulation runs, the versions of the packages that affect the numbers, and the user's imports.
"""

import json
import platform
import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tasks
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue, default_config
from deploy.runs.trials import PATHS
from deploy.sweeps.source_digests import closure, digest, package_version
from strategies import extensions

PACKAGES = ("numpy", "scipy", "scikit-learn", "flwr", "flwr-datasets")
WITHOUT_EFFECT = ("output-dir", "resume", "track")  # settings that do not change a result


def of_trial(config: Mapping[str, ConfigValue]) -> str:
    """Return the digest of the trial with these settings; ValueError if a file of theirs cannot be read."""
    settings: dict[str, Any] = {**default_config(app_folder()), **config}
    for name in WITHOUT_EFFECT:
        settings.pop(name, None)
    for name in PATHS - {"data-dir"}:
        if settings.get(name):
            settings[name] = _of_file(name, Path(str(settings[name])))
    task, where = str(settings["task"]), str(settings.pop("data-dir"))
    data = _of_data(task, where, str(settings["partition"]), int(settings["num-clients"]))
    return _digest([settings, data, of_code(), _torch(task)])


@cache
def of_code() -> str:
    """Return the digest of the sources, the packages' versions, and the user's imports, computed once."""
    sources = [digest(closure(["deploy.sweeps.trial_worker"])), default_config(app_folder())]
    versions = {name: package_version(name) for name in PACKAGES}
    return _digest([sources, versions, platform.python_version_tuple()[:2], of_imports()])


def of_imports() -> list[str]:
    """Return the digest of each file that the user imports. The folders of the files do not count."""
    return sorted(sha256(path.read_bytes()).hexdigest() for path in extensions.files())


def _of_file(setting: str, path: Path) -> str:
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"{setting} = {str(path)!r}: cannot be read: {error.strerror}") from error


@cache
def _of_data(task: str, where: str, partition: str, num_clients: int) -> str:
    """Return the digest of the files of the data or, if there are none, of the data in memory."""
    if files := tasks.data_files(task, where):
        found = sha256()
        for path in files:
            found.update(f"{path.name}\n".encode() + _of_file("data-dir", path).encode())
        return found.hexdigest()
    created = tasks.create(task, partition=partition, data_dir=where)
    data, test = created.federated_data(num_clients, 0), created.test_data()
    found = sha256()
    for each in (data.inputs, data.labels, data.offsets, test.inputs, test.labels):
        array: NDArray[Any] = np.ascontiguousarray(each)
        found.update(f"{array.dtype} {array.shape}\n".encode() + array.tobytes())
    return found.hexdigest()


@cache
def _torch(task: str) -> str:
    """Return torch's version and "cuda" or "cpu", if the task trains with torch; else ""."""
    kinds = type(tasks.create(task)).__mro__
    own = any(vars(sys.modules[kind.__module__]).get("torch") is not None for kind in kinds)
    if not (own and "torch" in sys.modules):
        return ""
    return f"{package_version('torch')} {'cuda' if sys.modules['torch'].cuda.is_available() else 'cpu'}"


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
