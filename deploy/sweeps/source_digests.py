"""Digests of source files, which show whether the present code made a result.

A result depends on a module, and on every module of this repository that it imports, directly or through
others. `closure` finds these files. Comments, docstrings, blank lines and texts for a page of results
(`TEXTS`) do not change a digest, since they change no result.
"""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.flower.app_folder import CODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TEXTS = ("claim", "note", "title")
"""A string that a call gets as a keyword argument of one of these names is text for a page, such as the note
of an `Experiment`."""


def closure(modules: Iterable[str], root: Path = CODE) -> list[Path]:
    """Return the files of modules, and of all modules below `root` that these import, in sorted order.

    Imports inside functions count; those that only a type checker sees do not. A file that calls
    `import_module` with a relative name imports all modules of its folder. The packages above an imported
    module do not count: ``from strategies.numerics.arrays import Floats`` depends on ``arrays.py``, and not
    on ``strategies/__init__.py``, which imports all strategies.

    Parameters
    ----------
    modules : Iterable of str
        Dotted names.
    root : Path
        The folder of this repository.

    Raises
    ------
    ValueError
        If there is no file for one of the modules.
    """
    found: set[Path] = set()
    waiting = []
    for name in modules:
        file = _file(name, root)
        if file is None:
            raise ValueError(f"module = {name!r}: there is no such module in {root}")
        waiting.append(file)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting.extend(_imported(file, root))
    return sorted(found)


def digest(files: Iterable[Path], root: Path = CODE) -> str:
    """Return the digest of the files' paths below `root` and of their code: 16 hexadecimal digits."""
    found = sha256()
    for file in files:
        found.update(f"{file.relative_to(root).as_posix()}\n{_code(file)}\n".encode())
    return found.hexdigest()[:16]


def package_version(package: str) -> str:
    """Return the version of an installed package, or "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _file(name: str, root: Path) -> Path | None:
    """Return the file of a module, or None if it is not below `root`."""
    path = root.joinpath(*name.split("."))
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return file
    return None


@cache
def _imported(file: Path, root: Path) -> list[Path]:
    """Return the files below `root` that a file imports directly."""
    package = list(file.parent.relative_to(root).parts)
    found: list[Path] = []
    for node in _nodes(_tree(file), "import_module" in file.read_text(encoding="utf-8")):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            below = {alias.name: f"{source}.{alias.name}" for alias in node.names}
            names = [name if _file(name, root) else source for name in below.values()]
        elif isinstance(node, ast.Call) and _imports_relatively(node):
            found += file.parent.glob("*.py")
        found += [path for name in names if (path := _file(name, root))]
    return found


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


def _nodes(tree: ast.AST, expressions: bool) -> Iterator[ast.AST]:
    """Yield the statements outside blocks ``if TYPE_CHECKING:``; with `expressions`, the expressions too."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting.extend(node.orelse)
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node) if expressions else _inside(node))


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements directly inside a statement. Expressions, most of the nodes, are left out."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        yield from getattr(node, name, ())


def _imports_relatively(node: ast.Call) -> bool:
    """Return whether a call is that of `import_module` with a name that begins with a dot."""
    if not (isinstance(node.func, ast.Name) and node.func.id == "import_module" and node.args):
        return False
    name: ast.AST = node.args[0]
    if isinstance(name, ast.JoinedStr) and name.values:
        name = name.values[0]
    return isinstance(name, ast.Constant) and str(name.value).startswith(".")


@cache
def _code(file: Path) -> str:
    """Return the text of a source file without comments, docstrings, texts for pages, and blank lines."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for value in _texts(_tree(file)) if any(f"{name}=" in text for name in TEXTS) else ():
        first, last = value.lineno - 1, value.end_lineno - 1  # type: ignore[operator]
        rest = lines[last].encode()[value.end_col_offset :].decode()
        lines[first : last + 1] = [
            lines[first].encode()[: value.col_offset].decode() + rest,
            *[""] * (last - first),
        ]
    waiting: list[ast.AST] = [_tree(file)]
    while waiting:
        node = waiting.pop()
        waiting.extend(_inside(node))
        for each in getattr(node, "body", ()):
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                lines[each.lineno - 1 : each.end_lineno] = [""] * (each.end_lineno - each.lineno + 1)  # type: ignore[operator]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _texts(tree: ast.Module) -> list[ast.expr]:
    """Return the strings and f-strings that calls get for the keywords `TEXTS`, the last one first."""
    found = [
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in TEXTS
        and (
            isinstance(keyword.value, ast.JoinedStr)
            or (isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str))
        )
    ]
    return sorted(found, key=lambda value: (value.lineno, value.col_offset), reverse=True)
