"""The numbers that simulated clients report before the selection."""

from dataclasses import replace

import numpy as np

from strategies.numerics.arrays import Floats, Ints
from strategies.numerics.robust import mean_weights
from strategies.rounds.seeds import client_seed
from strategies.rounds.trained_clients import ClientUpdates
from strategies.selectors import Selector
from tasks.base import Arrays, batches
from tasks.federated_data import Dataset, FederatedData, federate

from ..kernels import Kernel, Plan


class Polls:
    """Computes the numbers that clients would report: those in the selector's `polls_for`."""

    def __init__(self, data: FederatedData, kernel: Kernel, selector: Selector) -> None:
        self._data, self._kernel, self._selector = data, kernel, selector

    def reports(self, plan: Plan, candidates: Ints, arrays: Arrays) -> dict[str, Floats]:
        """Return the numbers (C,) that the candidates would report about the model, by name."""
        polls_for = self._selector.polls_for
        reports: dict[str, Floats] = {name: np.empty(0) for name in polls_for}
        if not candidates.size:
            return reports
        if "loss" in polls_for:
            asked, size = self._data, self._selector.poll_settings.get("batch-size")
            who = candidates
            if size is not None:
                asked, who = self._some_samples(plan, candidates, int(size)), np.arange(candidates.size)
            reports["loss"] = self._kernel.losses(arrays, asked, who)
        if polls_for - {"loss"}:  # numbers that are known only after training
            trained = self._kernel.train(arrays, self._data, candidates, plan)
            reports["update_norm"] = trained.updates.norms() / plan.learning_rate
            reports["gradient_variance"] = trained.gradient_variances
            if "diversity" in polls_for:
                apart = self._diversities(trained.updates, candidates, arrays)
                reports["diversity"] = apart / plan.learning_rate
        return {name: values for name, values in reports.items() if name in polls_for}

    def norms(self, plan: Plan, clients: Ints, arrays: Arrays, at_a_time: int = 1000) -> Floats:
        """Return (n,) the norms of the clients' updates before the first selection.

        ``at_a_time`` clients are trained at once, on the mini-batches of round 0, which no later round uses.
        """
        plan = replace(plan, round=0)
        parts = [clients[first : first + at_a_time] for first in range(0, clients.size, at_a_time)]
        norms = [self._kernel.train(arrays, self._data, part, plan).updates.norms() for part in parts]
        return np.concatenate([np.empty(0), *norms])

    def _some_samples(self, plan: Plan, candidates: Ints, size: int) -> FederatedData:
        """Return one mini-batch of each candidate: the mini-batch that its ClientApp would draw."""
        parts = []
        for client in candidates.tolist():
            begin, end = self._data.offsets[client], self._data.offsets[client + 1]
            seed = client_seed(plan.seed, plan.round, client, "loss")
            parts.append(begin + next(batches(int(end - begin), size, 1, seed)))
        return federate(Dataset(self._data.inputs, self._data.labels), parts)

    def _diversities(self, updates: ClientUpdates, clients: Ints, arrays: Arrays) -> Floats:
        """Return (R,) the distance of each update from the mean of all R updates, see `mean_weights`."""
        # An update that is not finite has weight 0 in the mean, and its diversity is not finite.
        mean = updates.combined(mean_weights(self._selector.client_sizes[clients], updates.norms()))
        apart = np.zeros(clients.size)
        for row in range(clients.size):
            model = updates.model(row)
            for name, array in arrays.items():
                apart[row] += float(np.square(model[name] - array - mean[name], dtype=np.float64).sum())
        return np.sqrt(apart)
