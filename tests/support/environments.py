"""Distributions built from this repository, and virtual environments that hold little else."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(source, target, *options):
    """Build the distributions of the pyproject.toml in a folder, with the hatchling installed here."""
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", target, source]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def environment_with(wheel, folder):
    """Make a virtual environment with one wheel, and return its interpreter.

    It borrows the packages installed here and the commands of Flower, but not this repository or its editable
    install.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    (packages,) = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "borrowed.pth").write_text("\n".join(borrowed))
    for script in entry_points(group="console_scripts"):
        if script.dist is not None and script.dist.name == "flwr":
            code = f"import sys\nfrom {script.module} import {script.attr}\nsys.exit({script.attr}())\n"
            (folder / "bin" / script.name).write_text(f"#!{python}\n{code}")
            (folder / "bin" / script.name).chmod(0o755)
    return python
