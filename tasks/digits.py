"""The data set "digits": 1,797 handwritten digits of 8 x 8 pixels, in a file of the package scikit-learn.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (test part).
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .federated_data import Dataset

_NUM_TEST = 360  # 20 %


def load() -> tuple[Dataset, Dataset]:
    """Return (train, test) with pixels in [0, 1]; ModuleNotFoundError if scikit-learn is not installed."""
    # The file is read without importing scikit-learn: the import takes a client process more than a second.
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "task = 'digits' needs scikit-learn: pip install 'cohort-app[demo]'", name="scikit-learn"
        )
    with gzip.open(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    # The samples are ordered by writer, so they are shuffled before the test set is held out.
    table = table[np.random.default_rng(0).permutation(len(table))]
    data = Dataset(table[:, :-1] / np.float32(16), table[:, -1].astype(np.int64))
    return (
        Dataset(data.inputs[_NUM_TEST:], data.labels[_NUM_TEST:]),
        Dataset(data.inputs[:_NUM_TEST], data.labels[:_NUM_TEST]),
    )
