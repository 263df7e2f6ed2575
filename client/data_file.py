"""Reads the file of a device's own samples.

This module does not import Flower, since `cohort client join` calls it, too.
"""

import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from tasks.federated_data import Dataset


def read_data_file(path: Path) -> tuple[Dataset, str | int | None]:
    """Return the samples in a file, and the group in the file or None.

    The file is a NumPy ``.npz`` file of n >= 1 samples. It holds ``inputs`` (n, features), finite numbers;
    ``labels`` (n,), whole numbers >= 0; and optionally ``group``, one text or one whole number.

    Raises
    ------
    ValueError
        If the file cannot be read or is not of this form.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:  # a pickle could run code
            inputs, labels = arrays["inputs"], arrays["labels"]
            group = arrays.get("group")
    except OSError as error:
        why = error.strerror or "is damaged"
        raise ValueError(f"data = {path}: must be an .npz with inputs and labels: {why}") from error
    except KeyError as error:
        raise ValueError(f"data = {path}: must be an .npz with inputs and labels: {error.args[0]}") from error
    except (ValueError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error) as error:
        # NumPy's own message advises to allow pickles, which could run code
        raise ValueError(f"data = {path}: must be an .npz with inputs and labels, without objects") from error
    if inputs.ndim != 2 or len(inputs) == 0 or inputs.dtype.kind not in "fiu":
        raise ValueError(
            f"data = {path}: inputs are {inputs.dtype} {inputs.shape}: must be numbers, (n, features)"
        )
    if labels.shape != inputs.shape[:1] or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"data = {path}: labels are {labels.dtype} {labels.shape}: "
            f"must be whole numbers >= 0, ({len(inputs)},)"
        )
    if not np.isfinite(inputs).all():
        raise ValueError(f"data = {path}: inputs must be finite")
    if group is not None and (group.shape != () or group.dtype.kind not in "iuU"):
        raise ValueError(
            f"data = {path}: group is {group.dtype} {group.shape}: must be one text or whole number"
        )
    data = Dataset(inputs.astype(np.float32), labels.astype(np.int64))
    return data, None if group is None else group.item()
