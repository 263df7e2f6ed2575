"""Tasks whose training samples are distributed over the clients by a partition."""

from functools import lru_cache

from . import datasets
from .base import Task
from .federated_data import Dataset, FederatedData, federate
from .partitions import Partition, parse, share_out


class PartitionedTask(Task):
    """A task without its model: a named data set and its partition. Subclasses add the model.

    ``dataset`` is one of `datasets.DESCRIPTIONS`; the data are read from ``data_dir`` at their first use.
    ``partition`` is one of `partitions.FORMS`. Raises ValueError if the data set or partition does not exist.
    """

    def __init__(self, dataset: str = "digits", *, partition: str = "skewed", data_dir: str = "") -> None:
        if dataset not in datasets.DESCRIPTIONS:
            raise ValueError(f"data set = {dataset!r}: must be one of {', '.join(datasets.DESCRIPTIONS)}")
        try:
            parse(partition)
        except ValueError as error:
            raise ValueError(f"partition = {partition!r}: {error}") from None
        self.data = datasets.DESCRIPTIONS[dataset]
        self._dataset, self._partition, self._data_dir = dataset, partition, data_dir

    def client_data(self, partition: int, num_partitions: int, seed: int) -> Dataset:
        parts = self._parts(num_partitions, seed, partition)
        return self._halves().train.take(parts.clients[partition])

    def client_group(self, partition: int, num_partitions: int, seed: int) -> int | None:
        parts = self._parts(num_partitions, seed, partition)
        return None if parts.groups is None else int(parts.groups[partition])

    def federated_data(self, num_clients: int, seed: int) -> FederatedData:
        parts = self._parts(num_clients, seed)
        return federate(self._halves().train, parts.clients, parts.groups)

    def test_data(self) -> Dataset:
        return self._halves().test.take(slice(None))

    def _halves(self) -> datasets.Halves:
        return datasets.load(self._dataset, self._data_dir)

    def _parts(self, num_clients: int, seed: int, partition: int = 0) -> Partition:
        """Return the samples of all clients; refuse a ``partition`` that is not one of them."""
        parts = _parts(self._halves().train, self._partition, num_clients, seed)
        if not 0 <= partition < num_clients:
            raise ValueError(f"partition-id = {partition}: must be between 0 and {num_clients - 1}")
        return parts


@lru_cache(maxsize=4)
def _parts(train: datasets.Samples, partition: str, num_clients: int, seed: int) -> Partition:
    """Compute the partition once for all clients of a process."""
    return share_out(partition, train.labels, num_clients, seed, train.users)
