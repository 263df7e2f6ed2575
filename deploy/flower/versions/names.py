"""The list of the private names of Flower that Cohort uses, and what tells that a name has changed.

`RECORDED` is this list: under each file of Cohort and its first sentence, which is the reason, the names of
Flower that the file uses, each with the digest of its source in the newest version that was tried. A name has
the form MODULE:ATTRIBUTE. `write` adds the names that files import and removes those that their file does not
mention any more; a name that a file finds by `importlib`, or a method that it calls, is added by hand. A
table stands for its columns, since its digest covers them, and a method of an interface for all its classes.
"""

import ast
import hashlib
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from deploy.flower.versions import find

RECORDED = Path(__file__).with_name("names.txt")
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation")
"""The modules of Flower whose ``__all__`` anybody may use."""
PROTOCOL = "flwr.proto."
"""The names of messages begin with it. They are the wire's, which devices of all versions share."""
_TABLES = "flwr.supercore.state.schema."
_ROOT = Path(__file__).parents[3]
_ROOMS = ("strategies", "tasks", "client", "server", "simulation", "deploy")  # what is installed with the app
_HEADER = (
    "# Written by `python -m deploy.flower.versions --write`; deploy/flower/versions/names.py explains it.\n"
)


def imported() -> dict[str, str]:
    """Return the private names of Flower that Cohort imports, with the path of a file that imports each."""
    found: dict[str, str] = {}
    for path in sorted(path for room in _ROOMS for path in (_ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
                names = {f"{node.module}:{each.name}" for each in node.names}
                found |= dict.fromkeys(filter(_is_private, names), str(path.relative_to(_ROOT)))
    return found


def is_mentioned(name: str, path: str) -> bool:
    """Return whether a file contains its last word; SQL and `wire` name tables and messages otherwise."""
    file, word = _ROOT / path, name.replace(":", ".").rpartition(".")[2]
    return file.is_file() and (name.startswith((PROTOCOL, _TABLES)) or word in file.read_text())


def _is_private(name: str) -> bool:
    module, _, attributes = name.partition(":")
    public = importlib.import_module(module).__all__ if module in PUBLIC else ()
    return attributes.partition(".")[0] not in public


def digest(found: Any) -> str:
    """Return a digest of what a name of Flower stands for: 12 hexadecimal digits.

    It depends on the source of a function or class without its comments and docstrings, on the fields of a
    message, and on the value of anything else. Of what Flower itself imports, it depends on the name only.
    """
    return hashlib.sha256(_text(found).encode()).hexdigest()[:12]


def _text(found: Any) -> str:
    if isinstance(found, property):
        found = found.fget
    if hasattr(found, "property"):  # a column of a table
        found = found.property.columns[0]
    if hasattr(found, "DESCRIPTOR"):
        return str(found.DESCRIPTOR.full_name) + "".join(
            f" {each.number} {each.name} {each.type} {each.label}" for each in found.DESCRIPTOR.fields
        )
    if not (inspect.isroutine(found) or inspect.isclass(found)):
        return re.sub(" at 0x[0-9a-f]+", "", repr(found))
    if not found.__module__.startswith("flwr"):
        return f"{found.__module__}.{found.__qualname__}"
    tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return re.sub(r"[\\\"']", "", ast.unparse(tree))  # versions of Python choose their quotes differently


def recorded() -> dict[str, str]:
    """Return the recorded names with their digests."""
    lines = (line for line in RECORDED.read_text().splitlines() if line and line[0] != "#")
    return dict(line.split() for line in lines)


def files() -> dict[str, str]:
    """Return the recorded names with the path of the file that uses each."""
    found, path = {}, ""
    for line in RECORDED.read_text().splitlines():
        if line.startswith("# "):
            path = line[2:].partition(":")[0]
        elif line:
            found[line.split()[0]] = path
    return found


def write() -> None:
    """Bring the list up to date, with the digests in the installed version."""
    groups: dict[str, list[str]] = {}
    kept = {name: path for name, path in files().items() if is_mentioned(name, path)}
    for name, path in (imported() | kept).items():
        groups.setdefault(path, []).append(name)
    parts = [
        f"\n# {path}: {_reason(path)}\n" + "".join(f"{name} {digest(find(name))}\n" for name in sorted(names))
        for path, names in sorted(groups.items())
    ]
    RECORDED.write_text(_HEADER + "".join(parts))


def _reason(path: str) -> str:
    """Return the first sentence of a file."""
    text = ast.get_docstring(ast.parse((_ROOT / path).read_text())) or ""
    return " ".join(re.split(r"(?<=\.)\s", text, maxsplit=1)[0].split())


def differences() -> tuple[list[str], list[str]]:
    """Return the recorded names that the installed Flower lacks, and those that have changed in it."""
    gone, changed = [], []
    for name, before in recorded().items():
        try:
            now = digest(find(name))
        except (ImportError, AttributeError):
            gone.append(name)
        else:
            if now != before:
                changed.append(name)
    return gone, changed
