"""Runs Flower's programs with the patches of `deploy.flower.patches`.

``python -m deploy.flower.launch PROGRAM ARGUMENTS`` runs PROGRAM, one of `LAUNCHED`, such as
`flower-supernode`.

A program's guards protect it; its other patches make it faster and more robust. Patches can be applied only
to a version of Flower that was tried (`deploy.flower.versions`).

- If the guards of a program cannot be applied, the program does not start. All patches of the SuperLink count
  as guards: they are parts of one service, the Fleet API.
- If the other patches cannot be applied, or on Windows, the program logs a warning and runs without them.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import entry_points
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

from deploy.fleet import server
from deploy.flower.commands import APP_SERVER, LAUNCHER
from deploy.flower.patches import app_starts, clientapp, serverapp, superexec, superlink, supernode
from deploy.flower.patches.apps import app_server
from deploy.flower.patches.guards import local_apis, reply_size
from deploy.flower.versions import refusal


class _Program(NamedTuple):
    """How one of Flower's programs is patched."""

    patch: Callable[[], None] = lambda: None
    """Applies all patches of the program except its guards."""
    starts: tuple[str, ...] = ()
    """The programs that this program starts."""
    guards: tuple[Callable[[], None], ...] = ()
    """Functions that apply the guards."""
    whole: bool = False
    """Whether `patch` counts as a guard."""


PROGRAMS = {
    "flower-supernode": _Program(
        supernode.patch,
        starts=("flwr-clientapp", APP_SERVER),
        guards=(local_apis.guard_supernode, supernode.guard),
    ),
    "flower-superlink": _Program(
        superlink.patch,
        starts=("flwr-serverapp",),
        guards=(server.guard, local_apis.guard_superlink),
        whole=True,
    ),
    "flower-superexec": _Program(
        superexec.patch, starts=("flwr-serverapp", "flwr-clientapp"), guards=(app_starts.guard_apps,)
    ),
    APP_SERVER: _Program(),
    "flwr-clientapp": _Program(clientapp.patch),
    "flwr-serverapp": _Program(serverapp.patch, guards=(reply_size.patch,)),
    "flwr": _Program(),
}
ALL = tuple(PROGRAMS)
LAUNCHED = tuple(name for name, program in PROGRAMS.items() if program.starts or program.guards)


def unsupported() -> str | None:
    """Return why patches, apart from guards, cannot be applied; None if they can."""
    return "Windows cannot fork processes" if sys.platform == "win32" else refusal()


def commands(names: Iterable[str]) -> dict[str, Callable[[], Any]]:
    """Import programs. Return, under the name of each, a function that runs the program.

    The function applies the program's guards, and its other patches unless `unsupported` gives a reason.
    """
    scripts = entry_points(group="console_scripts")
    programs: dict[str, Callable[[], Any]] = {
        name: app_server.main if name == APP_SERVER else scripts[name].load() for name in names
    }
    if reason := unsupported():
        getLogger("flwr").warning("Flower runs without the patches for speed and repair: %s", reason)
    return {
        name: partial(_run, name, program, patched=not reason)
        if PROGRAMS[name].guards or not reason
        else program
        for name, program in programs.items()
    }


def _run(name: str, program: Callable[[], Any], *, patched: bool) -> Any:
    known = PROGRAMS[name]
    unprotected = f"{name} does not start, because it would be unprotected"
    if known.guards and (reason := refusal()):
        raise SystemExit(f"{unprotected}: {reason}")
    try:
        for guard in known.guards:
            guard()
        if patched or known.whole:
            if known.starts:
                app_starts.apps.connect(known.starts, commands, LAUNCHER)
            known.patch()
    except (ImportError, AttributeError) as error:  # Flower lacks a name
        raise SystemExit(f"{unprotected}: {error}") from error
    return program()


def main(arguments: Sequence[str]) -> Any:
    """Run one of Flower's programs. The first argument is its name, the others are its own arguments."""
    if not arguments or arguments[0] not in LAUNCHED:
        raise SystemExit(f"usage: python -m {LAUNCHER} {{{','.join(LAUNCHED)}}} ARGUMENTS")
    name = arguments[0]
    if sys.path[0] in ("", str(Path.cwd())):  # Flower's own commands do not import from the working directory
        del sys.path[0]
    sys.argv = list(arguments)
    return commands([name])[name]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
