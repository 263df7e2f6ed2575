"""How samples are shared out over clients."""

import numpy as np
from numpy.typing import NDArray

# Section G of the OSMD paper: 65 % of the clients hold 1 sample, 20 % hold 5, 10 % 30 and 5 % 100.
_SHARES = np.array([0.65, 0.20, 0.10, 0.05])
_SAMPLES = np.array([1, 5, 30, 100])


def _round_to_sum(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Round to integers that sum to ``total``, by largest remainder; a tie goes to the last."""
    exact = shares / shares.sum() * total
    counts: NDArray[np.int64] = np.floor(exact + 1e-9).astype(np.int64)
    by_remainder = np.lexsort((-np.arange(len(shares)), -(exact - counts).round(9)))
    counts[by_remainder[: total - counts.sum()]] += 1
    return counts


def skewed_sizes(num_clients: int, num_samples: int) -> NDArray[np.int64]:
    """Return the skewed sizes of the OSMD paper's section G, scaled to ``num_samples``.

    Returns
    -------
    numpy.ndarray
        (num_clients,) samples a client, ascending, each at least 1, summing to ``num_samples``.

    Raises
    ------
    ValueError
        If there are fewer samples than clients.
    """
    if not 1 <= num_clients <= num_samples:
        raise ValueError(
            f"num-clients = {num_clients}: must be between 1 and {num_samples} (the number of samples)"
        )
    units = np.repeat(_SAMPLES, _round_to_sum(_SHARES, num_clients)).astype(np.float64)
    sizes = _round_to_sum(units, num_samples)
    for _ in range(np.count_nonzero(sizes == 0)):  # nobody stays empty: the largest give
        sizes[np.argmin(sizes)] += 1
        sizes[np.argmax(sizes)] -= 1
    return np.sort(sizes)


def split(sizes: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Deal sum(sizes) shuffled sample indexes out, ``sizes[m]`` to client m; each to one client only."""
    order = np.random.default_rng(seed).permutation(int(sizes.sum()))
    return np.split(order, np.cumsum(sizes)[:-1])
