"""Runs Flower's programs with the patches of `deploy.flower.patches`.

``python -m deploy.flower.launch PROGRAM ARGUMENTS`` runs PROGRAM, one of `LAUNCHED`, such as
`flower-supernode`.

A program's guards protect it; its other patches make it faster and more robust. Patches can be applied only
to a version of Flower that was tried (`deploy.flower.versions`), and only if it has all names that they use.

- If the guards of a program cannot be applied, the program does not start. All patches of the SuperLink count
  as guards: they are parts of one service, the Fleet API.
- If the other patches cannot be applied, or on Windows, the program logs a warning and runs without them.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import entry_points
from logging import WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deploy.fleet import server
from deploy.flower.commands import APP_SERVER, LAUNCHER
from deploy.flower.patches import app_starts, clientapp, serverapp, superexec, superlink, supernode
from deploy.flower.patches.apps import app_server
from deploy.flower.patches.guards import local_apis, reply_size
from deploy.flower.versions import find, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class _Program(NamedTuple):
    """How one of Flower's programs is patched. Names of Flower have the form MODULE:ATTRIBUTE."""

    patch: Callable[[], None]
    """Applies all patches of the program except its guards."""
    used: tuple[str, ...]
    """The names of Flower that `patch` uses."""
    starts: tuple[str, ...] = ()
    """The programs that this program starts."""
    guards: tuple[Callable[[], None], ...] = ()
    """Functions that apply the guards."""
    guards_use: tuple[str, ...] = ()
    """The names of Flower that the guards use."""
    whole: bool = False
    """Whether `patch` counts as a guard."""


PROGRAMS = {
    "flower-supernode": _Program(
        supernode.patch,
        supernode.USED,
        starts=("flwr-clientapp", APP_SERVER),
        guards=(local_apis.guard_supernode, supernode.guard),
        guards_use=(*local_apis.USED_BY_SUPERNODE, *supernode.USED_BY_START),
    ),
    "flower-superlink": _Program(
        superlink.patch,
        superlink.USED,
        starts=("flwr-serverapp",),
        guards=(server.guard, local_apis.guard_superlink),
        guards_use=(*server.USED, *local_apis.USED_BY_SUPERLINK, *superlink.USED),
        whole=True,
    ),
    "flower-superexec": _Program(
        superexec.patch,
        superexec.USED,
        starts=("flwr-serverapp", "flwr-clientapp"),
        guards=(app_starts.guard_apps,),
        guards_use=app_starts.USED,
    ),
    APP_SERVER: _Program(lambda: None, app_server.USED),
    "flwr-clientapp": _Program(clientapp.patch, clientapp.USED),
    "flwr-serverapp": _Program(
        serverapp.patch, serverapp.USED, guards=(reply_size.patch,), guards_use=reply_size.USED
    ),
    "flwr": _Program(lambda: None, ()),
}
ALL = tuple(PROGRAMS)
LAUNCHED = tuple(name for name, program in PROGRAMS.items() if program.starts or program.guards)


def unsupported(names: Iterable[str]) -> str | None:
    """Return why the patches of these programs, apart from guards, cannot be applied; None if they can."""
    if sys.platform == "win32":
        return "Windows cannot fork processes"
    return _differs(used for name in names for used in PROGRAMS[name].used)


def _differs(uses: Iterable[str]) -> str | None:
    """Return why Cohort cannot rely on the installed Flower.

    Returns None if this version was tried (`versions.TRIED`) and has all names in `uses`.
    """
    if reason := refusal():
        return reason
    for used in uses:
        try:
            find(used)
        except (ImportError, AttributeError) as error:
            return f"Flower has no {used} ({error})"
    return None


def commands(names: Iterable[str]) -> dict[str, Callable[[], Any]]:
    """Import programs. Return, under the name of each, a function that runs the program.

    The function applies the program's guards, and its other patches unless `unsupported` gives a reason.
    """
    names = list(names)
    scripts = entry_points(group="console_scripts")
    programs: dict[str, Callable[[], Any]] = {
        name: app_server.main if name == APP_SERVER else scripts[name].load() for name in names
    }
    reason = unsupported([*names, *(app for name in names for app in PROGRAMS[name].starts)])
    if reason:
        _warn(reason)
    return {
        name: partial(_run, name, program, patched=not reason)
        if PROGRAMS[name].guards or not reason
        else program
        for name, program in programs.items()
    }


def _run(name: str, program: Callable[[], Any], *, patched: bool) -> Any:
    known = PROGRAMS[name]
    if known.guards and (reason := _differs(known.guards_use)):
        raise SystemExit(f"{name} does not start, because it would be unprotected: {reason}")
    for guard in known.guards:
        guard()
    if patched or known.whole:
        if known.starts:
            app_starts.apps.connect(known.starts, commands, LAUNCHER)
        known.patch()
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


def _warn(reason: str) -> None:
    getLogger("flwr").log(WARNING, "Flower runs without the patches for speed and repair: %s", reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
