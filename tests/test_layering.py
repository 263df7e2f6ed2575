"""The arrows between rooms and files, as ARCHITECTURE.md draws them."""

import ast
import graphlib
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A room may import the rooms of the rows above its own.
ROOMS = (("strategies", "tasks"), ("client", "server", "simulation"), ("deploy",), ("benchmarks",))
# Inside strategies/: a folder or module may import those of the rows above its own.
STRATEGIES = (
    ("numerics", "results_file", "json_text"),
    ("designs",),
    ("selectors", "checkpoint"),
    ("options", "advice", "extensions"),
    ("clients",),
    ("rounds",),
    ("server_steps", "flower"),
    ("run", "reporters", "half_precision"),
    ("strategy",),
    ("presets",),
)
# Inside deploy/. `fleet` and `flower` are two halves of one room: the launcher in `flower` starts the service
# of `fleet`, which uses what `flower` knows of the programs.
DEPLOY = (
    ("json_text", "option_types", "processes"),
    ("tls",),
    ("flower",),
    ("check", "device", "engines"),
    ("runs",),
    ("page", "sweeps"),
    ("metrics",),
    ("hosting",),
    ("container",),
    ("cli",),
    ("command",),
)
HALVES = {"fleet": "flower"}
WITHOUT_FLOWER = ("numerics", "designs", "selectors", "advice", "clients", "rounds", "options")
LARGEST_FOLDER = 13  # files, without __init__.py


def files(room):
    found = [path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts]
    assert found, room
    return found


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules():
    return {name_of(path): path for row in ROOMS for room in row for path in files(room)}


@cache
def imports(path):
    """Return the absolute names of all that a file imports, wherever in it: modules, not what is in them."""
    name = name_of(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inside = f"{source}.{alias.name}"
                found.add(inside if inside in modules() else source)
    return frozenset(found)


def check_rows(rows, depth, inside=""):
    """Check that each name at a depth of the dotted names imports from the rows above its own only."""
    row_of = {name: number for number, row in enumerate(rows) for name in row}
    for name, path in modules().items():
        parts = [HALVES.get(part, part) for part in name.split(".")]
        if not name.startswith(inside) or len(parts) <= depth:
            continue
        for imported in imports(path):
            other = [HALVES.get(part, part) for part in imported.split(".")]
            if not imported.startswith(inside) or len(other) <= depth or other[depth] not in row_of:
                continue
            if other[depth] != parts[depth]:
                assert row_of[other[depth]] < row_of[parts[depth]], f"{name} imports {imported}"


def test_rooms_import_one_way():
    check_rows(ROOMS, 0)


@pytest.mark.parametrize(("room", "rows"), [("strategies", STRATEGIES), ("deploy", DEPLOY)])
def test_inside_a_room_imports_go_downwards_only(room, rows):
    paths = (ROOT / room).iterdir()
    inside = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {name for row in rows for name in row} == inside - {"__init__", *HALVES}
    check_rows(rows, 1, f"{room}.")


def test_no_circle_of_files():
    graph = {name: imports(path) & modules().keys() - {name} for name, path in modules().items()}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_no_folder_is_crowded():
    for row in ROOMS:
        for room in row:
            for folder in {path.parent for path in files(room)}:
                count = sum(path.name != "__init__.py" for path in folder.glob("*.py"))
                assert count <= LARGEST_FOLDER, f"{folder.relative_to(ROOT)} has {count} files"


@pytest.mark.parametrize("folder", ["selectors", "numerics", "advice"])
def test_selectors_and_numerics_are_numpy_only(folder):
    allowed = {"strategies", "numpy", "cvxpy", *sys.stdlib_module_names} - {"random", "socket"}
    for path in files(f"strategies/{folder}"):
        for imported in imports(path):
            assert imported.split(".")[0] in allowed, f"{path.relative_to(ROOT)} imports {imported}"


@pytest.mark.parametrize("folder", WITHOUT_FLOWER)
def test_the_round_knows_no_message(folder):
    module = ROOT / f"strategies/{folder}.py"
    for path in [module] if module.exists() else files(f"strategies/{folder}"):
        assert not any(imported.split(".")[0] in {"flwr", "grpc", "torch"} for imported in imports(path)), (
            path
        )
