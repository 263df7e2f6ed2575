"""The TOML that Flower reads: run configs, node configs and the defaults in an app's pyproject.toml."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

ConfigValue = str | int | float | bool


def default_config(app: Path) -> dict[str, ConfigValue]:
    """Return the run config in an app's pyproject.toml: every setting with its default."""
    project = tomllib.loads((app / "pyproject.toml").read_text())
    config: dict[str, ConfigValue] = project["tool"]["flwr"]["app"]["config"]
    return config


def write_config(path: Path, config: Mapping[str, ConfigValue], header: str = "") -> None:
    """Write a table of scalars, such as a run config, to a TOML file."""
    lines = "".join(f"{key} = {_toml(value)}\n" for key, value in config.items())
    path.write_text(header + lines, encoding="utf-8")


def _toml(value: ConfigValue) -> str:
    # A scalar of JSON is also valid TOML, with two exceptions. JSON escapes an emoji as a surrogate pair, so
    # characters beyond ASCII are left as they are. JSON leaves DEL as it is; TOML needs it escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
