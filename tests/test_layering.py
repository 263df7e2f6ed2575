"""The arrows between the rooms, as ARCHITECTURE.md draws them."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("strategies", "tasks", "client", "server", "deploy")
MAY_IMPORT = {
    "strategies": set(),
    "tasks": set(),
    "client": {"strategies", "tasks"},
    "server": {"strategies", "tasks"},
    "deploy": {"strategies", "tasks", "client", "server"},
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
                assert top in MAY_IMPORT[room], f"{path.relative_to(ROOT)} imports {module}"


def test_strategies_stand_alone() -> None:
    """Another app may have the folder under any name: no absolute import of itself."""
    for path in (ROOT / "strategies").rglob("*.py"):
        for level, module in imports(path):
            assert level > 0 or module.split(".")[0] != "strategies", path


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
    for name in ("round", "roster", "reports"):
        for _, module in imports(ROOT / "strategies" / f"{name}.py"):
            assert module.split(".")[0] != "flwr", name
