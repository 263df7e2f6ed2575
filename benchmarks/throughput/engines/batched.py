"""The batched simulator of this project, which trains the selected clients as one computation."""

from pathlib import Path

from benchmarks.throughput.workloads import HORIZON, Parameters, Workload
from simulation.kernels import MLP, Kernel, Softmax
from simulation.simulator import Simulator
from tasks.federated_data import FederatedData

from . import Engine


class Batched(Engine):
    """The simulator with Adaptive-OSMD, which learns from each round before it selects for the next."""

    def __init__(self, workload: Workload, data: FederatedData, folder: Path) -> None:
        kernel: Kernel
        if len(workload.layers) == 2:
            self._names, self._transposed = ["weight", "bias"], False
            kernel = Softmax(*workload.layers)
        else:
            linear = range(0, 2 * (len(workload.layers) - 1), 2)  # the odd numbers are ReLU layers
            self._names = [f"{number}.{kind}" for number in linear for kind in ("weight", "bias")]
            self._transposed = True
            kernel = MLP(workload.layers)
        initial = [values.T if self._transposed else values for values in workload.initial()]
        self._simulator = Simulator(
            data,
            kernel,
            "adaptive-osmd",
            clients_per_round=workload.clients_per_round,
            num_rounds=HORIZON,
            learning_rate=workload.learning_rate,
            batch_size=workload.batch_size,
            local_steps=workload.steps,
            seed=workload.seed,
            initial_arrays=dict(zip(self._names, initial, strict=True)),
        )

    def run(self, rounds: int) -> None:
        records = self._simulator.run(rounds)
        if any(record.failures or record.skipped for record in records):
            raise RuntimeError("a round was skipped, or an update was left out")

    def model(self) -> Parameters:
        arrays = [self._simulator.arrays[name] for name in self._names]
        return [values.T if self._transposed else values for values in arrays]
