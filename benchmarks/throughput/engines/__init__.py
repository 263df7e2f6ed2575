"""The compared engines. The file of an engine has the code that a user of the engine would write."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.throughput.workloads import Parameters, Workload
from tasks.federated_data import FederatedData


class Engine(Protocol):
    """A federation that trains on command. Each engine's module has such a class, under the name `create`.

    Parameters
    ----------
    workload : Workload
        The workload to train.
    data : FederatedData
        The samples of the workload's clients.
    folder : Path
        Folder from which other processes can load the samples with `workloads.load`.
    """

    def __init__(self, workload: Workload, data: FederatedData, folder: Path) -> None: ...

    def run(self, rounds: int) -> None:
        """Run the next `rounds` rounds, of K clients each."""

    def model(self) -> Parameters:
        """Return the global model."""

    def close(self) -> None:
        """End all threads and processes that the engine has started."""


class Entry(NamedTuple):
    """The description of an engine, available without importing its module."""

    title: str
    module: str  # name in this package
    install: str  # command that installs the packages of the engine
    is_peer: bool = False  # whether it runs in the peers' environment


_SELF = "pip install 'cohort-app[torch]'"
_PEERS = "python3.11 -m venv .peers && .peers/bin/pip install -r benchmarks/peers.txt"

ENGINES = {
    "batched": Entry("this project, all clients of a round as one computation", "batched", _SELF),
    "products": Entry("the matrix products of `batched` alone, without training", "products", _SELF),
    "in-process": Entry("this project, client by client on its Grid", "in_process", _SELF),
    "loop": Entry("a plain PyTorch loop", "loop", _SELF),
    "ray": Entry("Flower's simulation on Ray", "flower_ray", "pip install 'cohort-app[simulation,torch]'"),
    "pfl": Entry("pfl-research, PyTorch", "pfl_research", _PEERS, is_peer=True),
    "fedjax": Entry("FedJAX", "google_fedjax", _PEERS, is_peer=True),
}


def create(name: str, workload: Workload, data: FederatedData, folder: Path) -> Engine:
    """Import an engine and set it up; `name` is a key of `ENGINES`.

    Raises ModuleNotFoundError if a package that the engine needs is missing.
    """
    module = import_module(f"{__name__}.{ENGINES[name].module}")
    engine: Engine = module.create(workload, data, folder)
    return engine
