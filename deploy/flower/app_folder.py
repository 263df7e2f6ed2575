"""Where the Flower app of this project lies: the folder that `flwr run` bundles."""

from __future__ import annotations

from pathlib import Path


def app_folder() -> Path:
    """Return the folder of the app's pyproject.toml."""
    return Path(__file__).resolve().parents[2]
