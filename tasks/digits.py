"""scikit-learn's digits: 1,797 handwritten digits of 8 x 8 pixels, which ship inside the package.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (test part).
"""

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .base import Dataset
from .partitions import skewed_sizes, split

NUM_FEATURES = 64
NUM_CLASSES = 10
_NUM_TEST = 360  # 20 %


@cache
def _load() -> tuple[Dataset, Dataset]:
    """Return (train, test), pixels scaled to [0, 1]; the same split in every process."""
    # Read past scikit-learn's import, which costs a client process over a second.
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="scikit-learn")
    with gzip.open(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    # The file is ordered by writer: shuffle, always in the same way, before the test set is held out.
    table = table[np.random.default_rng(0).permutation(len(table))]
    data = Dataset(table[:, :-1] / np.float32(16), table[:, -1].astype(np.int64))
    return (
        Dataset(data.inputs[_NUM_TEST:], data.labels[_NUM_TEST:]),
        Dataset(data.inputs[:_NUM_TEST], data.labels[:_NUM_TEST]),
    )


def client_data(partition: int, num_partitions: int, seed: int) -> Dataset:
    """Return one client's part of the 1,437 training samples: skewed sizes, classes at random."""
    if not 0 <= partition < num_partitions:
        raise ValueError(f"partition-id = {partition}: must be between 0 and {num_partitions - 1}")
    train, _ = _load()
    mine = split(skewed_sizes(num_partitions, len(train)), seed)[partition]
    return Dataset(train.inputs[mine], train.labels[mine])


def test_data() -> Dataset:
    """Return the 360 held-out samples."""
    return _load()[1]
