"""Digests of source files, which show whether the present code made a result.

A result depends on a module, and on every module of this repository that it imports, directly or through
others (`closure`). Comments, docstrings and blank lines change no result, so they change no digest.
"""

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from deploy.flower.app_folder import CODE


def closure(modules: Iterable[str], root: Path = CODE) -> list[Path]:
    """Return the files of modules, and of all modules below `root` that these import, in sorted order.

    Imports inside functions count; those that only a type checker sees do not. A file that calls
    `import_module` with a relative name imports all modules of its folder. The packages above an imported
    module do not count: ``from strategies.numerics.arrays import Floats`` depends on ``arrays.py`` alone.
    Raises ValueError if there is no file for one of the modules.
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
    """Return the text of a source file without comments, docstrings and blank lines."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    for node in _nodes(_tree(file), False):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)  # type: ignore[operator]
    return "\n".join(line.rstrip() for line in lines if line.strip())
