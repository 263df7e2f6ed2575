"""The app templates in examples/ run with `flwr run . local`, with the library as it is installed.

`make test-simulation` runs them on the pinned Flower, and `make test-newest-flower` on the newest.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from deploy.processes.groups import processes_with
from deploy.processes.ports import free_ports

from ..support.environments import ROOT, environment_with

TEMPLATES = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))
NAMES = [template.name for template in TEMPLATES]
COMMAND = ["run", ".", "local", "--stream", "--federation-config", "num-supernodes=10"]
MARK = "COHORT_TEMPLATE_TEST"  # marks the processes that `flwr run` leaves behind


@pytest.fixture
def flower(tmp_path):
    """Return the environment of a machine without a network, on which Flower was never used."""
    ray = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short, for Ray's sockets
    (tmp_path / "tmp").mkdir()
    try:
        yield {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "TMPDIR": str(tmp_path / "tmp"),
            "FLWR_HOME": str(tmp_path / "flwr"),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_ports(1)[0]),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(ray),
            MARK: str(tmp_path),
        }
    finally:
        for pid in processes_with(MARK, str(tmp_path)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(ray, ignore_errors=True)


def run(template, commands, flower, folder):
    """Run a copy of the template as its README says, for fewer rounds, and check the accuracy."""
    app = shutil.copytree(template, folder / template.name, ignore=shutil.ignore_patterns("__pycache__"))
    for _ in range(3):
        done = subprocess.run(
            [commands / "flwr", *COMMAND, "--run-config", "num-rounds=4"],
            cwd=app, env={**flower, "PATH": f"{commands}:{flower['PATH']}"},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        output = done.stdout + done.stderr
        if "Failed to start local SuperLink" not in output:  # Flower waits for 15 s; a busy machine is slower
            break
    assert done.returncode == 0, output
    found = re.search(r"accuracy after \d+ rounds: (\d\.\d+)", output)
    assert found, output
    assert float(found[1]) > 0.7  # 0.1 by chance


@pytest.mark.parametrize("template", TEMPLATES, ids=NAMES)
def test_a_template_has_the_shape_of_a_flower_app(template):
    package = template / template.name.replace("-", "_")
    assert {path.name for path in package.glob("*.py")} >= {"client_app.py", "server_app.py", "task.py"}
    project = tomllib.loads((template / "pyproject.toml").read_text())
    assert project["project"]["name"] == template.name
    assert any(need.startswith("flwr-cohort") for need in project["project"]["dependencies"])
    readme = (template / "README.md").read_text()
    assert f"cd examples/{template.name}\nflwr {' '.join(COMMAND)}" in readme


@pytest.mark.simulation
@pytest.mark.parametrize("template", TEMPLATES, ids=NAMES)
def test_a_template_runs(template, library_wheel, flower, tmp_path):
    commands = environment_with(library_wheel, tmp_path / "venv").parent
    run(template, commands, flower, tmp_path)


@pytest.mark.newest
@pytest.mark.parametrize("template", TEMPLATES, ids=NAMES)
def test_a_template_runs_on_the_newest_flower(template, flower, tmp_path):
    if template.name.endswith("pytorch") and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    run(template, Path(sys.executable).parent, flower, tmp_path)
