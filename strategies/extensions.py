"""Imports selectors and tasks from other packages, and from files that the user names (`--import`).

`cohort simulate --import my.py` calls `name_modules`, which puts the path of the file into the environment
variable that `VARIABLE` names. Each process that the command starts calls `load`, which imports the file in
this process, too. A package offers selectors or tasks through an entry point in one of the groups `GROUPS`.
The entry point names a selector class, or a module that calls `register` of `selectors` or of `tasks`.

This package is `strategies` in the app and `flwr_cohort` in the published library. In a process of the app, a
module that imports `flwr_cohort` gets the modules of the app, so a class is the same class under both names.
"""

import logging
import os
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .selectors import Selector, register

VARIABLE = "COHORT_IMPORT"  # files and modules, with os.pathsep between them
GROUPS = ("cohort.selectors", "cohort.tasks")
LIBRARY = "flwr_cohort"
_PACKAGE = __name__.rpartition(".")[0]
_ROOMS = {_PACKAGE, LIBRARY, "tasks", "client", "server", "simulation", "deploy", "benchmarks"}

_loaded: dict[str, list[Path]] = {}  # file, module or entry point -> the files that its import loaded


def name_modules(modules: Sequence[str]) -> None:
    """Import files and modules, in this process and in all processes that it starts later.

    ``modules``: each is the path of a file that ends with ".py", or the dotted name of a module.

    Raises a ValueError if a file or module cannot be imported. The message names the file or module, and the
    reason.
    """
    names = [str(Path(each).expanduser().absolute()) if each.endswith(".py") else each for each in modules]
    for name in names:
        if os.pathsep in name:
            raise ValueError(f"import = {name!r}: must not contain {os.pathsep!r}")
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*named(), *names]))
    load()


def named() -> list[str]:
    """Return the files and modules that the environment variable names."""
    return [each for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each]


def load() -> None:
    """Import the named files and modules, and all entry points. A second call imports nothing again.

    If an entry point cannot be imported, a warning is logged: a broken package must not stop the others.
    """
    entries = [entry for group in GROUPS for entry in entry_points(group=group)]
    if not (entries or named()):
        return
    _alias_library()
    for entry in entries:
        if entry.value not in _loaded:
            before = set(sys.modules)
            try:
                found = entry.load()
                if isinstance(found, type) and issubclass(found, Selector):
                    register(found)
            except Exception as error:
                _log().warning("entry point %s = %s cannot be loaded: %s", entry.name, entry.value, error)
            _loaded[entry.value] = _files_since(before)
    for name in named():
        if name not in _loaded:
            before = set(sys.modules)
            try:
                _import(name)
            except (Exception, SystemExit) as error:
                for each in set(sys.modules) - before:
                    if each.startswith(f"{_PREFIX}_"):
                        del sys.modules[each]
                kind = type(error).__name__
                raise ValueError(f"import = {name!r}: cannot be imported: {kind}: {error}") from error
            _loaded[name] = _files_since(before)


def files() -> list[Path]:
    """Return the files that `load` has imported, also indirectly.

    Modules of the standard library and of Cohort itself are not listed. A module in site-packages is
    listed only if an entry point or a named module belongs to its package.
    """
    return sorted({path for found in _loaded.values() for path in found})


_PREFIX = "cohort_import"


def _import(name: str) -> None:
    if not name.endswith(".py"):
        import_module(name)
        return
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    # The folder comes last in the search path: a module beside the file must not hide another module.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    unique = f"{_PREFIX}_{sha256(name.encode()).hexdigest()[:8]}_{path.stem}"
    spec = spec_from_file_location(unique, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[unique] = module_from_spec(spec)
    spec.loader.exec_module(module)


def _files_since(before: set[str]) -> list[Path]:
    """Return the files of modules whose names were not in ``before``, except those that `files` omits."""
    own = {each.partition(".")[0] for each in _loaded_names()}
    found = []
    for name in set(sys.modules) - before:
        top = name.partition(".")[0]
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or top in _ROOMS or top in sys.stdlib_module_names:
            continue
        if "site-packages" in Path(file).parts and top not in own:
            continue
        found.append(Path(file))
    return found


def _loaded_names() -> list[str]:
    entries = [entry.value for group in GROUPS for entry in entry_points(group=group)]
    return [each.partition(":")[0] for each in (*entries, *named()) if not each.endswith(".py")]


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


class _Alias(MetaPathFinder, Loader):
    """Makes an import of a module of `flwr_cohort` return the module of this package with the same code."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.partition(".")[0] == LIBRARY else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_PACKAGE + spec.name.removeprefix(LIBRARY))
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Python has replaced the module's spec by that of the alias, with which relative imports would fail.
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = self._specs.pop(spec.name)


def _alias_library() -> None:
    if _PACKAGE == LIBRARY or any(isinstance(each, _Alias) for each in sys.meta_path):
        return
    if LIBRARY in sys.modules:
        raise ValueError(
            f"import: {LIBRARY} is already imported in this process, so its classes would differ from those "
            "of the app"
        )
    sys.meta_path.insert(0, _Alias())
