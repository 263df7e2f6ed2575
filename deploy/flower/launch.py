"""Runs Flower's programs with the patches of `deploy.flower.patches`.

``python -m deploy.flower.launch flower-supernode ARGUMENTS`` runs Flower's own `flower-supernode`, or another
program of `LAUNCHED`, patched. With another version of Flower than the one that the patches were written for,
it logs a warning and runs the stock program.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from importlib.metadata import entry_points, version
from logging import WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deploy.flower.commands import LAUNCHER
from deploy.flower.patches import clientapp, serverapp, shared, superexec, superlink, supernode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class _Program(NamedTuple):
    """One of Flower's programs."""

    patch: Callable[[], None]
    used: tuple[str, ...]
    """The names of Flower that the patch uses; if one is missing, the program stays as it is."""
    starts: tuple[str, ...] = ()
    """The programs that it starts by itself."""


PROGRAMS = {
    "flower-supernode": _Program(supernode.patch, supernode.USED, starts=("flwr-clientapp",)),
    "flower-superlink": _Program(superlink.patch, superlink.USED, starts=("flwr-serverapp",)),
    "flower-superexec": _Program(
        superexec.patch, superexec.USED, starts=("flwr-serverapp", "flwr-clientapp")
    ),
    "flwr-clientapp": _Program(clientapp.patch, clientapp.USED),
    "flwr-serverapp": _Program(serverapp.patch, serverapp.USED),
    "flwr": _Program(lambda: None, ()),
}
ALL = tuple(PROGRAMS)
LAUNCHED = tuple(name for name, program in PROGRAMS.items() if program.starts)


def unsupported(names: Iterable[str]) -> str | None:
    """Return the reason why these programs cannot be patched, None if they can. Imports what they use."""
    if sys.platform == "win32":
        return "Windows cannot fork processes"
    if version("flwr") != shared.WRITTEN_FOR:
        return f"Flower is {version('flwr')}, and the patches were written for {shared.WRITTEN_FOR}"
    for used in (each for name in names for each in PROGRAMS[name].used):
        module, _, attributes = used.partition(":")
        try:
            found = importlib.import_module(module)
            for attribute in attributes.split("."):
                found = getattr(found, attribute)
        except (ImportError, AttributeError) as error:
            return f"Flower has no {used} ({error})"
    return None


def commands(names: Iterable[str]) -> dict[str, Callable[[], Any]]:
    """Return functions that run these programs, patched where that is supported. Imports what they use."""
    names = list(names)
    scripts = entry_points(group="console_scripts")
    programs: dict[str, Callable[[], Any]] = {name: scripts[name].load() for name in names}
    if reason := unsupported(names):
        _warn(reason)
        return programs
    return {name: partial(_run, name, program) for name, program in programs.items()}


def _run(name: str, program: Callable[[], Any]) -> Any:
    if starts := PROGRAMS[name].starts:
        shared.apps.connect(starts, commands, LAUNCHER)
    PROGRAMS[name].patch()
    return program()


def main(arguments: Sequence[str]) -> Any:
    """Run one of Flower's programs; see the module's docstring."""
    if not arguments or arguments[0] not in LAUNCHED:
        raise SystemExit(f"usage: python -m {LAUNCHER} {{{','.join(LAUNCHED)}}} ARGUMENTS")
    name = arguments[0]
    if reason := unsupported([name, *PROGRAMS[name].starts]):
        _warn(reason)
        os.execvp(name, list(arguments))
    if sys.path[0] in ("", str(Path.cwd())):  # an installed command does not import from there
        del sys.path[0]
    sys.argv = list(arguments)
    return commands([name])[name]()


def _warn(reason: str) -> None:
    getLogger("flwr").log(WARNING, "Flower runs unpatched, with its polling intervals: %s", reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
