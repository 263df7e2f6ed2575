"""The compared engines, one per file: the code that a user of the engine would write."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.throughput.workloads import Parameters, Workload
    from tasks.data import FederatedData


class Engine(Protocol):
    """A federation that trains on command; each module names its engine `create`.

    Parameters
    ----------
    workload : Workload
        The workload to train.
    data : FederatedData
        Its samples.
    folder : Path
        Folder from which other processes can `load` the samples.
    """

    def __init__(self, workload: Workload, data: FederatedData, folder: Path) -> None: ...

    def run(self, rounds: int) -> None:
        """Run the next `rounds` rounds, of K clients each."""

    def model(self) -> Parameters:
        """Return the global model."""

    def close(self) -> None:
        """End everything that the engine has started."""


class Entry(NamedTuple):
    """The description of an engine, known before it is imported."""

    title: str
    module: str
    install: str  # the remedy if a package is missing
    is_peer: bool = False  # runs in the peers' environment


_SELF = "pip install 'cohort-app[torch]'"
_PEERS = "python3.11 -m venv .peers && .peers/bin/pip install -r benchmarks/peers.txt"

ENGINES = {
    "batched": Entry("this project, a cohort as one computation", "batched", _SELF),
    "in-process": Entry("this project, client by client on its Grid", "in_process", _SELF),
    "loop": Entry("a plain PyTorch loop", "loop", _SELF),
    "ray": Entry("Flower's simulation on Ray", "flower_ray", "pip install 'cohort-app[simulation,torch]'"),
    "pfl": Entry("pfl-research, PyTorch", "pfl_research", _PEERS, is_peer=True),
    "fedjax": Entry("FedJAX", "google_fedjax", _PEERS, is_peer=True),
}


def create(name: str, workload: Workload, data: FederatedData, folder: Path) -> Engine:
    """Import an engine and set it up.

    Raises
    ------
    ModuleNotFoundError
        If a package that it needs is missing.
    """
    module = import_module(f"{__name__}.{ENGINES[name].module}")
    engine: Engine = module.create(workload, data, folder)
    return engine
