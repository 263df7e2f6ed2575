"""Removes gRPC from the Flower of the environment that runs this file, as its next release will.

The servers, stubs, clients and interceptors of gRPC are deleted. Whatever imports them, or gRPC itself, gets
`GONE` in their place, which does nothing until it is called. The result is a version of its own, which was
not tried yet. `make test-flower-rehearsal` runs the contract tests on it.
"""

import ast
import shutil
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

REMOVED = (
    "proto/*_pb2_grpc.py*",
    "server/superlink/fleet/grpc_*",
    "server/fleet_event_log_interceptor.py",
    "compat/client/grpc_client",
    "superlink/servicer/control/control_grpc.py",
    "superlink/servicer/control/control_servicer.py",
    "superlink/servicer/control/control_*_interceptor.py",
    "supercore/grpc.py",
    "supercore/grpc_health",
    "supercore/error/grpc.py",
    "supercore/interceptors/r*_interceptor.py",
    "supercore/retry/grpc_retry.py",
)
GONE = '''"""Stands for what needed gRPC."""


class _Gone:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases):
        return ()

    def __repr__(self):
        return "gone"

    def __call__(self, *arguments, **named):
        raise RuntimeError("this Flower has no gRPC")


gone = _Gone()


def add_args_health(parser):
    """A release without the health service has no option for it."""
    parser.set_defaults(health_server_address=None)
'''


def remove(flower):
    """Remove gRPC from the package in this folder."""
    found = [path for pattern in REMOVED for path in flower.glob(pattern)]
    assert all(any(flower.glob(pattern)) for pattern in REMOVED), "Flower has been reorganised"
    modules = {_module(path, flower) for path in found if path.suffix in ("", ".py")}
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (flower / "removed.py").write_text(GONE)
    for path in flower.rglob("*.py"):
        text = path.read_text()
        if "grpc" in text or any(name.rpartition(".")[2] in text for name in modules):
            path.write_text(_without(text, path, modules, flower))


def _module(path, flower):
    return ".".join(path.relative_to(flower.parent).with_suffix("").parts)


def _without(text, path, modules, flower):
    """Return the text of a file whose imports of these modules, and of gRPC, are replaced."""
    lines = text.splitlines(keepends=True)
    package = _module(path, flower).split(".")[:-1]

    def is_gone(name):
        return name.partition(".")[0] in ("grpc", "grpc_health") or any(
            name == each or name.startswith(f"{each}.") for each in modules
        )

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            prefix, start = "", "import "
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])]) + "."
            start = f"from {'.' * node.level}{node.module or ''} import "
        else:
            continue
        gone = [each for each in node.names if is_gone(prefix + each.name)]
        if not gone:
            continue
        kept = [each for each in node.names if each not in gone]
        statements = [f"{start}{', '.join(_alias(each) for each in kept)}"] if kept else []
        for each in gone:
            known = "add_args_health" if each.name == "add_args_health" else "gone"
            statements.append(f"from flwr.removed import {known} as {each.asname or each.name}")
        assert node.end_lineno is not None
        lines[node.lineno - 1] = " " * node.col_offset + "; ".join(statements) + "\n"
        lines[node.lineno : node.end_lineno] = [""] * (node.end_lineno - node.lineno)
    return "".join(lines)


def _alias(name):
    return f"{name.name} as {name.asname}" if name.asname else name.name


if __name__ == "__main__":
    spec = find_spec("flwr")
    assert spec is not None
    assert spec.origin is not None
    remove(Path(spec.origin).parent)
    shutil.rmtree(Path(spec.origin).parents[1] / "grpc_health")
    found = distribution("flwr")
    metadata = Path(str(found.locate_file(f"flwr-{found.version}.dist-info"))) / "METADATA"
    old = f"\nVersion: {found.version}\n"
    metadata.write_text(metadata.read_text().replace(old, f"\nVersion: {found.version}+without.grpc\n", 1))
