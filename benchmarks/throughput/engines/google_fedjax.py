"""FedJAX (Google, PyPI `fedjax`): its federated averaging, with XLA on one thread."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # type: ignore[import-not-found]
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np

from benchmarks.throughput.workloads import Parameters, Workload
from tasks.federated_data import FederatedData

from . import Engine

jax.tree_map = jax.tree_util.tree_map  # FedJAX calls the function by this name, which newer JAX removed

import fedjax  # type: ignore[import-not-found]  # noqa: E402


class FedJax(Engine):
    """FedAvg over clients drawn uniformly, weighted by their numbers of samples."""

    def __init__(self, workload: Workload, data: FederatedData, folder: Path) -> None:
        depth = len(list(pairwise(workload.layers)))

        def loss(parameters: list[jax.Array], batch: dict[str, jax.Array], _: jax.Array) -> jax.Array:
            values = batch["x"]
            for layer in range(depth):
                values = values @ parameters[2 * layer] + parameters[2 * layer + 1]
                values = jax.nn.relu(values) if layer < depth - 1 else jax.nn.log_softmax(values)
            return -jnp.take_along_axis(values, batch["y"][:, None], axis=1).mean()

        # FedJAX fills every batch by repeating samples. The mean gradient stays the same if one sample is
        # repeated until it fills a batch of five, but not if fifty samples are repeated until they fill a
        # batch of 64. So a batch has at most as many samples as the largest client.
        batch = min(workload.batch_size, max(samples for _, samples in workload.shares))
        self._algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            jax.grad(loss),
            fedjax.optimizers.sgd(workload.learning_rate),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch, num_epochs=None, num_steps=workload.steps),
        )
        clients = map(data.client, range(data.num_clients))
        federation = fedjax.InMemoryFederatedData(
            {m: {"x": each.inputs, "y": each.labels.astype(np.int32)} for m, each in enumerate(clients)}
        )
        self._sampler = fedjax.client_samplers.UniformGetClientSampler(
            federation, workload.clients_per_round, seed=workload.seed
        )
        self._state = self._algorithm.init([jnp.asarray(each) for each in workload.initial()])

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self._state, _ = self._algorithm.apply(self._state, self._sampler.sample())
        jax.block_until_ready(self._state.params)

    def model(self) -> Parameters:
        return [np.asarray(each) for each in self._state.params]
