"""Prints the tree of the repository, with the first sentence of each file: `make tree`."""

from __future__ import annotations

import ast
import subprocess
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = "results/"


def lines() -> list[str]:
    """Return a line for each folder, followed by a line for each of its files."""
    found = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    files = [Path(each) for each in found if not each.startswith(LEFT_OUT)]
    tree = []
    for folder, members in groupby(sorted(files, key=lambda file: file.parent), key=lambda file: file.parent):
        inside = sorted(member for member in members if member.name != "__init__.py")
        package = ROOT / folder / "__init__.py"
        tree.append(f"{folder.as_posix()}/  {first_sentence(package)}".rstrip())
        width = max((len(member.name) for member in inside), default=0)
        tree.extend(
            f"  {member.name:<{width}}  {first_sentence(ROOT / member)}".rstrip() for member in inside
        )
    return tree


def first_sentence(file: Path) -> str:
    """Return the first line of a file's docstring, heading or comment; "" if the file begins with none."""
    if not file.exists() or file.suffix in {".ipynb", ".lock", ".png", ".svg", ".txt"}:
        return ""
    if file.suffix == ".py":
        return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
    first = file.read_text().partition("\n")[0]
    return first[2:].strip(" */") if first.startswith(("# ", "//", "/*")) else ""


if __name__ == "__main__":
    print("\n".join(lines()))
