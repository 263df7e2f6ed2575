"""What it takes to hand this app to Flower as a run, whatever engine runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from deploy.processes.groups import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploy.processes.groups import Process

ConfigValue = str | int | float | bool
BUNDLED_SUFFIXES = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
BUNDLED_NAMES = {"LICENSE", ".gitignore"}


class EngineError(RuntimeError):
    """What runs the app did not start, died or refused a run; the message carries the end of its log."""


class Engine(Protocol):
    """What runs the app: a cluster of processes, or Flower's simulation."""

    logs: Path

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> RunHandle:
        """Begin a run; `run_config` holds what differs from the defaults in the app's pyproject.toml."""

    def abort(self, run: RunHandle) -> None:
        """Let a run be over whose ServerApp was killed, which Flower takes note of after a minute only."""

    def check(self) -> list[str]:
        """Return the clients that died since the last look; raise EngineError if nothing can go on."""


@dataclass(frozen=True)
class RunHandle:
    """A run that was submitted. Its process is `flwr run --stream`, which ends when the run is over."""

    name: str
    process: Process
    engine: Engine

    @property
    def log(self) -> Path:
        """What the ServerApp printed."""
        return self.process.log

    @property
    def run_id(self) -> str | None:
        """Flower's number of the run, once it has one."""
        found = re.search(r"Successfully started run (\d+)", self.log.read_text(errors="replace"))
        return found and found[1]

    @property
    def over(self) -> bool:
        """Whether the run is over. How it went is for the app to say: `flwr run` exits with 0 either way."""
        return self.process.returncode is not None

    @property
    def last_words(self) -> str:
        """The end of the log."""
        return f"the end of {self.log}:\n{self.process.tail()}"

    def abort(self) -> None:
        """End the run (see `Engine.abort`)."""
        self.engine.abort(self)

    def wait(self, timeout: float) -> None:
        """Wait until the run is over.

        Raises
        ------
        TimeoutError
            If it is not over after `timeout` seconds.
        EngineError
            If the engine dies, or Flower refuses the run.
        """

        def over() -> bool:
            self.engine.check()
            return self.over

        if not wait_until(over, timeout):
            raise TimeoutError(f"run {self.name}: not over after {timeout:g} s; its log: {self.log}")
        if self.process.returncode:
            raise EngineError(f"run {self.name}: Flower refused it:\n{self.process.tail()}")


def default_config(app: Path) -> dict[str, ConfigValue]:
    """Return the run config in an app's pyproject.toml: every setting, and its default."""
    project = tomllib.loads((app / "pyproject.toml").read_text())
    config: dict[str, ConfigValue] = project["tool"]["flwr"]["app"]["config"]
    return config


def run_command(
    app: Path, connection: str, run_config: Mapping[str, ConfigValue], folder: Path, leave_out: Path
) -> list[str]:
    """Write what a run needs into a new folder, and return the command that runs it and ends with it.

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
    config = folder / "config.toml"
    config.write_text("".join(f"{key} = {toml(value)}\n" for key, value in run_config.items()))
    return ["flwr", "run", str(folder / "app"), connection, "--stream", "--run-config", str(config)]


def copy_app(app: Path, target: Path, leave_out: Path) -> None:
    """Copy the files that Flower may bundle.

    Flower itself looks at every file below the app's folder before it leaves most of them out; when
    a virtual environment is among them, that takes several seconds a run.
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


def flower_environment(path: list[Path], home: Path, temporary: Path) -> dict[str, str]:
    """Return an environment for Flower's programs in which they write only into two folders and tell nobody.

    Parameters
    ----------
    path : list[Path]
        What comes before this environment's PATH.
    home, temporary : Path
        Flower's home, and the folder for temporary files.
    """
    here = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1", "localhost"]))
    return {
        **os.environ,
        "PATH": os.pathsep.join([*map(str, path), os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "TMPDIR": str(temporary),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "no_proxy": here,
        "NO_PROXY": here,
        # All clients share this machine's cores: one thread each is fastest for all together.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def toml(value: ConfigValue) -> str:
    """Write a scalar as TOML: as JSON does, but for JSON's way to write an emoji in ASCII."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
