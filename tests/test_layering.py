"""The arrows between the rooms, as ARCHITECTURE.md draws them."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("strategies", "tasks", "client", "server", "simulation", "deploy", "benchmarks")
MAY_IMPORT = {
    "strategies": set(),
    "tasks": set(),
    "client": {"strategies", "tasks"},
    "server": {"strategies", "tasks"},
    "simulation": {"strategies", "tasks"},
    "deploy": {"strategies", "tasks", "client", "server", "simulation"},
    "benchmarks": {"strategies", "tasks", "client", "server", "simulation", "deploy"},
}


def imports(path: Path) -> list[tuple[int, str]]:
    """Return (level, module) of each import in a file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or ""))
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_one_way(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        for level, module in imports(path):
            top = module.split(".")[0]
            if level == 0 and top in ROOMS and top != room:
                # The entry point gathers all commands, `cohort bench` too.
                gathers = (path.name, module) == ("cli.py", "benchmarks.command")
                assert top in MAY_IMPORT[room] or gathers, f"{path.relative_to(ROOT)} imports {module}"


def test_strategies_stand_alone() -> None:
    """Another app may have the folder under any name: no absolute import of itself."""
    for path in (ROOT / "strategies").rglob("*.py"):
        for level, module in imports(path):
            assert level > 0 or module.split(".")[0] != "strategies", path


# Inside strategies/: a module may import those of the rows above its own.
LAYERS = (
    {"numerics", "checkpoint", "wire"},
    {"selectors", "privacy", "limits"},
    {"reports", "grid", "measured", "progress", "aggregation", "guard", "responses", "variates"},
    {"trained"},
    {"answers"},
    {"roster", "round", "composition"},
    {"declared", "messages", "server_step"},
    {"attendance", "polling"},
    {"options"},
    {"strategy"},
    {"named"},
)


def test_strategies_import_downwards_only() -> None:
    root = ROOT / "strategies"
    layer_of = {name: depth for depth, names in enumerate(LAYERS) for name in names}
    modules = {path.stem for path in root.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert layer_of.keys() == {name for name in modules if not name.startswith("__")}
    for path in root.rglob("*.py"):
        inside = path.relative_to(root).with_suffix("").parts
        if inside == ("__init__",):
            continue
        for level, module in imports(path):
            if level == 0:
                continue
            # "from . import selectors" names no module: its names are modules themselves.
            package = inside[: len(inside) - level]
            names = [module] if module else imported_names(path, level)
            for name in names:
                target = (*package, *name.split("."))[0]
                if target != inside[0]:
                    assert layer_of[target] < layer_of[inside[0]], (
                        f"{path.relative_to(ROOT)} imports {target}"
                    )


def imported_names(path: Path, level: int) -> list[str]:
    """Return what a file imports by "from . import a, b" at a level."""
    return [
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level == level and not node.module
        for alias in node.names
    ]


def test_strategies_work_under_another_name(tmp_path: Path) -> None:
    """A stranger may copy the folder into an app that has a `strategies` package of its own."""
    shutil.copytree(ROOT / "strategies", tmp_path / "picker", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "__init__.py").write_text("MINE = True\n")
    code = (
        "import strategies, picker, picker.selectors as s, sys; assert strategies.MINE; "
        "picker.AdaptiveOSMD(clients_per_round=2); s.create('md', 5, clients_per_round=2).select(1); "
        "assert not any(name.startswith('strategies.') for name in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_selectors_and_numerics_are_numpy_only() -> None:
    allowed = {"numpy", "cvxpy", *sys.stdlib_module_names} - {"random", "socket"}
    for folder in ("selectors", "numerics"):
        for path in (ROOT / "strategies" / folder).rglob("*.py"):
            for level, module in imports(path):
                assert level > 0 or module.split(".")[0] in allowed, (
                    f"{path.relative_to(ROOT)} imports {module}"
                )


def test_numerics_know_no_selector() -> None:
    for path in (ROOT / "strategies" / "numerics").rglob("*.py"):
        for level, module in imports(path):
            assert level < 2, f"{path.relative_to(ROOT)} reaches out to {module}"


def test_the_round_knows_no_message() -> None:
    without_flower = (
        *("aggregation", "answers", "checkpoint", "declared", "guard", "limits", "privacy"),
        *("reports", "responses", "roster", "round", "trained", "variates"),
    )
    for name in without_flower:
        for _, module in imports(ROOT / "strategies" / f"{name}.py"):
            assert module.split(".")[0] != "flwr", name
