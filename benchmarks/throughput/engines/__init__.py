"""The compared engines. The file of an engine has the code that a user of the engine would write."""

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from benchmarks.throughput.workloads import Parameters, Workload
from tasks.federated_data import FederatedData


class Engine:
    """A federation that trains on command.

    It is made from the workload, the samples of its clients, and the folder to load them from in other
    processes.
    """

    def run(self, rounds: int) -> None:
        """Run the next `rounds` rounds, at least 1, of K clients each."""
        raise NotImplementedError

    def model(self) -> Parameters:
        """Return the global model."""
        raise NotImplementedError

    def close(self) -> None:
        """End all threads and processes that the engine has started."""


class Entry(NamedTuple):
    """The description of an engine, available without importing its module."""

    module: str  # name in this package
    kind: str  # the class in the module
    install: str  # command that installs the packages of the engine
    is_peer: bool = False  # whether it runs in the peers' environment


_SELF = "pip install 'cohort-app[torch]'"
_PEERS = "python3.11 -m venv .peers && .peers/bin/pip install -r benchmarks/peers.txt"

ENGINES = {
    "batched": Entry("batched", "Batched", _SELF),  # this project, all clients of a round as one computation
    "products": Entry("products", "Products", _SELF),  # the matrix products of `batched` alone
    "in-process": Entry("in_process", "InProcess", _SELF),  # this project, client by client on its Grid
    "loop": Entry("loop", "Loop", _SELF),  # a plain PyTorch loop
    "ray": Entry("flower_ray", "FlowerRay", "pip install 'cohort-app[simulation,torch]'"),
    "pfl": Entry("pfl_research", "Pfl", _PEERS, is_peer=True),
    "fedjax": Entry("google_fedjax", "FedJax", _PEERS, is_peer=True),
}


def create(name: str, workload: Workload, data: FederatedData, folder: Path) -> Engine:
    """Import an engine of `ENGINES`, and set it up; ModuleNotFoundError if a package is missing."""
    entry = ENGINES[name]
    engine: Engine = getattr(import_module(f"{__name__}.{entry.module}"), entry.kind)(workload, data, folder)
    return engine
