"""The launcher patches the Flower that the patches were written for, and runs any other one unpatched."""

import importlib
import os
import subprocess
import sys
from logging import getLogger
from pathlib import Path
from typing import Any

import pytest

from deploy.flower import launch

ROOT = Path(launch.__file__).parents[2]


# --- where Flower is another one ------------------------------------------------------------------------


def test_the_installed_flower_is_the_one_that_the_patches_were_written_for() -> None:
    assert launch.unsupported(launch.ALL) is None


def using(name: str) -> dict[str, Any]:
    return {"flwr": launch.PROGRAMS["flwr"]._replace(used=(name,))}


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("version", lambda _: "1.38.0", "Flower is 1.38.0, and the patches were written for 1.39.0"),
        ("PROGRAMS", using("flwr.no_such_module:name"), "no flwr.no_such_module:name"),
        ("PROGRAMS", using("flwr.cli.app:app.no_such_name"), "no flwr.cli.app:app.no_such_name"),
    ],
)
def test_programs_of_another_flower_stay_unpatched_and_a_warning_gives_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, attribute: str, value: Any, reason: str
) -> None:
    monkeypatch.setattr(launch, attribute, value)
    monkeypatch.setattr(getLogger("flwr"), "propagate", True)
    programs = launch.commands(["flwr"])
    assert programs["flwr"] is importlib.import_module("flwr.cli.app").app
    (warning,) = caplog.messages
    assert "Flower runs unpatched, with its polling intervals" in warning
    assert reason in warning


def test_the_launcher_runs_the_stock_program_of_another_flower() -> None:
    script = (
        "from deploy.flower import launch; launch.shared.WRITTEN_FOR = '1.0'; "
        "launch.main(['flower-supernode', '--version'])"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Flower runs unpatched" in done.stderr + done.stdout
    assert "Flower version: 1.39.0" in done.stdout


def test_the_launcher_names_the_programs_that_it_launches() -> None:
    with pytest.raises(SystemExit, match=r"usage: python -m deploy.flower.launch .*flower-supernode"):
        launch.main(["flwr", "run"])
