"""Turns the names in the docstrings of the library into links to the API reference.

In a docstring, single backticks hold the name of a class, function or module, or of a parameter or setting.
A public name becomes a link to the API reference. Names that exist in the code but are not public become
code, and so does any other lower-case word, which is taken to be a parameter or a setting. Everything else is
a missing reference, of which Sphinx warns.
"""

import re
import sys
from importlib.util import find_spec
from typing import Any

import flwr_cohort
from docutils import nodes
from flwr_cohort import advice, options, reporters, selectors

_MODULES = (flwr_cohort, selectors, options, advice, reporters)


def _public_names(target: str) -> list[str]:
    """Return the names under which the API reference may have an object that a docstring calls ``target``."""
    parts = target.split(".")
    return [
        ".".join([module.__name__, *parts[start:]])
        for start, name in enumerate(parts)
        for module in _MODULES
        if name in module.__all__
    ]


def _exists(target: str) -> bool:
    """Return whether the name is that of a module of this repository, or of something in a module."""
    if target.split(".")[0] in ("strategies", "server", "client", "simulation", "tasks", "deploy"):
        try:
            if find_spec(target) is not None:
                return True
        except ModuleNotFoundError:
            pass
    target = target.removeprefix("strategies.")
    package, _, name = target.rpartition(".")
    modules = {key: module for key, module in sys.modules.items() if f"{key}.".startswith("flwr_cohort.")}
    if f"flwr_cohort.{target}" in modules:
        return True
    if f"flwr_cohort.{package}" in modules:
        return hasattr(modules[f"flwr_cohort.{package}"], name)
    holder, _, member = target.partition(".")
    found = [vars(module)[holder] for module in modules.values() if holder in vars(module)]
    return any(not member or hasattr(each, member) for each in found)


def resolve(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Resolve a reference that Sphinx cannot resolve."""
    if node.get("refdomain") != "py" or node.get("reftype") == "class":
        return None
    target = node["reftarget"].removesuffix("()")
    objects = env.get_domain("py").objects
    for name in _public_names(target):
        if name in objects:
            page = app.builder.get_relative_uri(node.get("refdoc", env.docname), objects[name].docname)
            uri = f"{page}#{objects[name].node_id}"
            return nodes.reference("", "", contnode, internal=True, refuri=uri, reftitle=name)
    return contnode if re.fullmatch(r"[a-z_][a-z_0-9]*", target) or _exists(target) else None


def setup(app: Any) -> dict[str, bool]:
    """Connect `resolve`."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
