"""scikit-learn's digits: 1,797 handwritten digits of 8 x 8 pixels, which ship inside the package.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (test part).
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .data import Dataset

_NUM_TEST = 360  # 20 %


def load() -> tuple[Dataset, Dataset]:
    """Return (train, test), pixels scaled to [0, 1]; the same split in every process.

    Raises
    ------
    ModuleNotFoundError
        If scikit-learn is not installed.
    """
    # Read past scikit-learn's import, which costs a client process over a second.
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "digits: need scikit-learn: pip install 'cohort-app[demo]'", name="scikit-learn"
        )
    with gzip.open(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    # The file is ordered by writer: shuffle, always in the same way, before the test set is held out.
    table = table[np.random.default_rng(0).permutation(len(table))]
    data = Dataset(table[:, :-1] / np.float32(16), table[:, -1].astype(np.int64))
    return (
        Dataset(data.inputs[_NUM_TEST:], data.labels[_NUM_TEST:]),
        Dataset(data.inputs[:_NUM_TEST], data.labels[:_NUM_TEST]),
    )
