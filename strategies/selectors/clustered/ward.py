"""Ward's hierarchical clustering, cut where the weight of a cluster reaches a limit.

Ward, "Hierarchical Grouping to Optimize an Objective Function" (1963); Lance, Williams, "A General Theory of
Classificatory Sorting Strategies" (1967); Murtagh, "A Survey of Recent Advances in Hierarchical Clustering
Algorithms" (1983), for the chains of nearest neighbours.
"""

import numpy as np

from ...numerics.arrays import Floats, Ints


def ward_groups(squares: Floats, weights: Floats, limit: float) -> list[Ints]:
    """Return the largest clusters of Ward's tree whose weight is at most `limit`, and all other single items.

    The tree starts with n clusters of one item, and merges again and again the two clusters of the least
    distance. By the formula of Lance and Williams, the squared distance of the merger of a and b to c is::

        ((n_a + n_c) d²(a, c) + (n_b + n_c) d²(b, c) - n_c d²(a, b)) / (n_a + n_b + n_c)

    with n_a items in a. A chain of nearest neighbours finds the same tree in O(n²) time, in another order. A
    single item is a group even if its weight exceeds the limit. Among equal distances, the order of the items
    decides.

    `squares` (n, n) holds the squared distances of the items, symmetric and >= 0, and `weights` (n,) their
    weights > 0. The groups are arrays of items, and together hold each item once.
    """
    n = weights.size
    d = np.array(squares, dtype=np.float64)
    np.fill_diagonal(d, np.inf)
    counts = np.ones(n)
    open_groups: dict[int, list[int]] = {i: [i] for i in range(n)}  # the clusters within the limit
    heavy = np.array(weights, dtype=np.float64)
    groups: list[list[int]] = []
    alive = set(range(n))
    chain: list[int] = []
    for _ in range(n - 1):
        chain = chain or [min(alive)]
        while True:
            row = d[chain[-1]]
            nearest = int(np.argmin(row))
            if len(chain) > 1 and row[chain[-2]] <= row[nearest]:
                break
            chain.append(nearest)
        b, a = chain.pop(), chain.pop()
        merged = (counts[a] + counts) * d[a] + (counts[b] + counts) * d[b] - counts * d[a, b]
        merged /= counts[a] + counts[b] + counts
        merged[a] = merged[b] = np.inf
        d[a], d[:, a] = merged, merged
        d[b] = d[:, b] = np.inf
        counts[a] += counts[b]
        heavy[a] += heavy[b]
        alive.remove(b)
        parts = [open_groups.pop(each) for each in (a, b) if each in open_groups]
        if heavy[a] <= limit and len(parts) == 2:
            open_groups[a] = parts[0] + parts[1]
        else:
            groups += parts
    groups += open_groups.values()
    return [np.array(group, dtype=np.int64) for group in groups]
