"""The TOML that Flower reads: run configs, node configs and the defaults in an app's pyproject.toml."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ConfigValue = str | int | float | bool


def default_config(app: Path) -> dict[str, ConfigValue]:
    """Return the run config in an app's pyproject.toml: every setting with its default."""
    project = tomllib.loads((app / "pyproject.toml").read_text())
    config: dict[str, ConfigValue] = project["tool"]["flwr"]["app"]["config"]
    return config


def write_config(path: Path, config: Mapping[str, ConfigValue], header: str = "") -> None:
    """Write a run config, or with a header another table of scalars, as a TOML file."""
    lines = "".join(f"{key} = {_toml(value)}\n" for key, value in config.items())
    path.write_text(header + lines, encoding="utf-8")


def _toml(value: ConfigValue) -> str:
    # JSON's scalars are TOML's, except for an emoji escaped as ASCII and the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
