"""Partitions: functions that distribute samples over clients, given labels, a number of clients and a seed.

A run names its partition in the setting ``partition`` (`FORMS`). A partition returns one array of sample
indexes per client; no sample goes to two clients. Each docstring names the equivalent partitioner of Flower
Datasets, if there is one: it makes other random draws, but has the same distribution, except where a
difference is stated. `from_flower` accepts any partitioner of Flower Datasets.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Section G of the OSMD paper: 65 % of the clients hold 1 sample, 20 % hold 5, 10 % hold 30 and 5 % hold 100.
_SHARES = np.array([0.65, 0.20, 0.10, 0.05])
_SAMPLES = np.array([1, 5, 30, 100])


class Partition(NamedTuple):
    """The samples of each client."""

    clients: list[Ints]  # the sample indexes of each of the M clients
    groups: Ints | None = None  # (M,) the group of each client, if the partition makes groups


def _round_to_sum(shares: NDArray[np.float64], total: int) -> Ints:
    """Scale shares to the sum ``total``, and round by largest remainder, the later of equal ones first."""
    exact = shares / shares.sum() * total
    counts: Ints = np.floor(exact + 1e-9).astype(np.int64)
    by_remainder = np.lexsort((-np.arange(len(shares)), -(exact - counts).round(9)))
    counts[by_remainder[: total - counts.sum()]] += 1
    return counts


def _check_clients(num_clients: int, most: int, what: str = "the number of samples") -> None:
    if not 1 <= num_clients <= most:
        raise ValueError(f"num-clients = {num_clients}: must be between 1 and {most} ({what})")


def _filled(sizes: Ints) -> Ints:
    """Move one sample to each empty client, from the largest client; return the sizes, ascending."""
    for _ in range(np.count_nonzero(sizes == 0)):
        sizes[np.argmin(sizes)] += 1
        sizes[np.argmax(sizes)] -= 1
    return np.sort(sizes)


def skewed_sizes(num_clients: int, num_samples: int) -> Ints:
    """Return the sizes of the OSMD paper's section G, scaled to ``num_samples``: ascending, at least 1."""
    _check_clients(num_clients, num_samples)
    units = np.repeat(_SAMPLES, _round_to_sum(_SHARES, num_clients)).astype(np.float64)
    return _filled(_round_to_sum(units, num_samples))


def balanced_sizes(num_clients: int, num_samples: int) -> Ints:
    """Return (num_clients,) sizes that sum to ``num_samples`` and differ by at most 1."""
    _check_clients(num_clients, num_samples)
    return _round_to_sum(np.ones(num_clients), num_samples)


def power_law_sizes(num_clients: int, num_samples: int, exponent: float) -> Ints:
    """Return sizes in proportion to rank^-exponent, as FedProx's and LEAF's: ascending, at least 1."""
    _check_clients(num_clients, num_samples)
    return _filled(_round_to_sum(np.arange(1.0, num_clients + 1) ** -exponent, num_samples))


def split(sizes: Ints, seed: int, num_samples: int | None = None) -> list[Ints]:
    """Give ``sizes[m]`` of ``num_samples`` (default: their sum) shuffled sample indexes to client m.

    Flower Datasets: `SizePartitioner` on shuffled data.
    """
    needed = int(sizes.sum())
    order = np.random.default_rng(seed).permutation(needed if num_samples is None else num_samples)
    return np.split(order[:needed], np.cumsum(sizes)[:-1])


def skewed(labels: Ints, num_clients: int, seed: int, unit: int | None = None) -> list[Ints]:
    """Distribute samples at random, with the client sizes of the OSMD paper's section G.

    By default the sizes are scaled to use all samples. With ``unit``, clients hold ``unit`` times 1, 5, 30 or
    100 samples (the paper: 500 clients, unit 1), and others are unused; ValueError if there are too few.
    """
    if unit is None:
        return split(skewed_sizes(num_clients, len(labels)), seed)
    needed = int(_round_to_sum(_SHARES, num_clients) @ _SAMPLES) * unit
    if needed > len(labels):
        raise ValueError(f"partition = 'skewed:{unit}': needs {needed} samples, there are {len(labels)}")
    return split(skewed_sizes(num_clients, needed), seed, len(labels))


def balanced(labels: Ints, num_clients: int, seed: int, size: int | None = None) -> list[Ints]:
    """Distribute samples at random to clients of equal size, by default all: sizes differ by at most 1.

    With ``size``, each client gets so many, and others are unused; ValueError if there are too few. Flower
    Datasets: `IidPartitioner` on shuffled data.
    """
    if size is None:
        return split(balanced_sizes(num_clients, len(labels)), seed)
    if num_clients * size > len(labels):
        raise ValueError(
            f"partition = 'balanced:{size}': needs {num_clients * size} samples, there are {len(labels)}"
        )
    return split(np.full(num_clients, size), seed, len(labels))


def power_law(labels: Ints, num_clients: int, seed: int, exponent: float = 1.0) -> list[Ints]:
    """Distribute samples at random, with the client sizes of `power_law_sizes`."""
    return split(power_law_sizes(num_clients, len(labels), exponent), seed)


def dirichlet(labels: Ints, num_clients: int, seed: int, alpha: float, min_size: int = 1) -> list[Ints]:
    """Split each class in proportions drawn from Dir_M(α), so that sizes and classes both vary by client.

    Dir_M(α) is the symmetric Dirichlet distribution over the M clients with α > 0: with a small α each client
    has few classes; with a large one all are alike. Yurochkin et al. 2019 introduced this partition. The
    Power-of-Choice paper uses it (appendix F: Dir_K(α) over the K clients, where α sets "the data size
    imbalance and degree of label skew across clients"), but refers to Hsu et al. 2019, whose partition is
    `dirichlet_balanced`.

    Flower Datasets: `DirichletPartitioner` with ``self_balancing=False``. That partitioner draws again, up to
    ten times, until every client has ``min_size`` samples. Here the largest clients give samples to clients
    below ``min_size``, which also works for many clients and a small α. Raises ValueError if there are fewer
    than M * ``min_size`` samples, or if α is not positive.
    """
    _check_alpha(alpha)
    _check_clients(num_clients, len(labels) // max(min_size, 1), f"{min_size} sample(s) each")
    random = np.random.default_rng(seed)
    pieces: list[list[Ints]] = []
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(num_clients, alpha))
        pieces.append(np.split(rows, (np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)))
    parts = [random.permutation(np.concatenate(mine)) for mine in zip(*pieces, strict=True)]
    return _at_least(parts, min_size)


def _at_least(parts: list[Ints], min_size: int) -> list[Ints]:
    """Move samples to clients below ``min_size``, each time from the client with the most samples."""
    largest = [(-len(part), m) for m, part in enumerate(parts)]
    heapify(largest)
    left = np.array([len(part) for part in parts])
    moved: dict[int, list[int]] = {}
    for m in np.flatnonzero(left < min_size).tolist():
        for _ in range(min_size - left[m]):
            giver = largest[0][1]
            left[giver] -= 1
            moved.setdefault(m, []).append(int(parts[giver][left[giver]]))
            heapreplace(largest, (-int(left[giver]), giver))
    return [
        np.concatenate([part[: left[m]], np.array(moved.get(m, ()), dtype=np.int64)])
        for m, part in enumerate(parts)
    ]


def dirichlet_balanced(labels: Ints, num_clients: int, seed: int, alpha: float) -> list[Ints]:
    """Draw each client's classes from its own proportions q_m ~ Dir(α p); sizes differ by at most 1.

    From Hsu et al. 2019; p are the shares of the classes in the data. Samples are drawn without replacement,
    client after client in random order. A used-up class is not drawn again; the others keep their
    proportions.

    Flower Datasets: `InnerDirichletPartitioner` with equal ``partition_sizes`` and the list α p as its
    ``alpha`` has the same q_m, but its clients take turns sample by sample. When classes run out, the
    proportions of all clients then change; here, only those of the clients that draw last. Raises ValueError
    if there are fewer samples than clients, or if α is not positive.
    """
    _check_alpha(alpha)
    sizes = balanced_sizes(num_clients, len(labels))
    random = np.random.default_rng(seed)
    _, classes, left = np.unique(labels, return_inverse=True, return_counts=True)
    rows = [random.permutation(np.flatnonzero(classes == c)) for c in range(len(left))]
    proportions = random.dirichlet(alpha * left / len(labels), num_clients)
    parts: list[Ints] = [np.empty(0, np.int64)] * num_clients
    # The order of the clients is random, because the last clients draw from the classes that are left.
    for m in random.permutation(num_clients):
        taken = np.zeros(len(left), np.int64)
        while (missing := int(sizes[m] - taken.sum())) > 0:
            q = np.where(left > taken, proportions[m], 0)
            if q.sum() <= 0:
                q = (left - taken).astype(np.float64)
            taken = np.minimum(taken + random.multinomial(missing, q / q.sum()), left)
        # The client gets the last samples of each class. `left` then counts only the samples before them.
        parts[m] = np.concatenate([row[n - k : n] for row, n, k in zip(rows, left, taken, strict=True)])
        left = left - taken
    return parts


def label_shards(labels: Ints, num_clients: int, seed: int, shards_per_client: int = 2) -> list[Ints]:
    """Sort the samples by class, cut them into equal shards, and give each client some shards at random.

    McMahan et al. 2017 (section 3) have 200 shards, two per client. Flower Datasets: `ShardPartitioner` with
    ``num_shards_per_partition`` leaves out samples that do not fill a shard. Here all are used, and the sizes
    of shards differ by at most 1. Raises ValueError if there are more shards than samples.
    """
    _check_clients(num_clients, len(labels) // shards_per_client, f"{shards_per_client} shard(s) each")
    random = np.random.default_rng(seed)
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(order, num_clients * shards_per_client)
    dealt = random.permutation(len(shards)).reshape(num_clients, shards_per_client)
    return [np.concatenate([shards[shard] for shard in mine]) for mine in dealt]


def label_split(labels: Ints, num_clients: int, seed: int, owners: int | None = None) -> list[Ints]:
    """Divide all classes but one among a few owners, and the remaining class equally among the other clients.

    This is DELTA's split-FashionMNIST (appendix H.2: "10 % clients own 90 % of the data"). There,
    ``num_clients`` is 109: nine clients own a class each, and one hundred clients share the tenth class,
    which is chosen at random. The owners are the first clients, by default C - 1, one for each class that is
    not shared, and not fewer. Raises ValueError if a client would hold no sample. Flower Datasets has no
    equivalent partitioner.
    """
    random = np.random.default_rng(seed)
    classes = random.permutation(np.unique(labels))
    owners = len(classes) - 1 if owners is None else owners
    if len(classes) < 2 or not len(classes) - 1 <= owners < num_clients:
        raise ValueError(
            f"partition = 'label-split:{owners}': needs between {max(1, len(classes) - 1)} and "
            f"{num_clients - 1} owners among {num_clients} clients (two classes or more; now {len(classes)})"
        )
    rows = [random.permutation(np.flatnonzero(labels == label)) for label in classes]
    holders = [*(len(each) for each in np.array_split(np.arange(owners), len(classes) - 1))]
    parts = [
        part
        for row, count in zip(rows, [*holders, num_clients - owners], strict=True)
        for part in np.array_split(row, count)
    ]
    if min(map(len, parts)) == 0:
        raise ValueError(f"num-clients = {num_clients}: must be smaller: clients would hold no sample")
    return parts


def label_groups(labels: Ints, num_clients: int, seed: int, num_groups: int = 10) -> Partition:
    """Put the clients into groups at random. Group k holds classes k and k + 1, modulo the number of groups.

    From FLICS (section IV: "clients in group k are assigned samples with labels k and mod(k+1, 10)"). With
    fewer groups than classes, class c counts as class c mod ``num_groups``. Each class is divided equally
    among the clients of its two groups. Flower Datasets: `PathologicalPartitioner` with two classes per
    client and the mode "deterministic" has the same classes, and puts client m into group m mod 10. Raises
    ValueError if there are fewer clients than groups, more groups than classes, or too few samples.
    """
    distinct, classes = np.unique(labels, return_inverse=True)
    if not 1 <= num_groups <= min(num_clients, len(distinct)):
        raise ValueError(
            f"partition = 'groups:{num_groups}': must be between 1 and "
            f"{min(num_clients, len(distinct))} groups ({num_clients} clients, {len(distinct)} classes)"
        )
    random = np.random.default_rng(seed)
    groups = random.permutation(np.arange(num_clients) % num_groups)
    pieces: list[list[Ints]] = [[] for _ in range(num_clients)]
    for c in range(num_groups):
        holders = random.permutation(np.flatnonzero((groups == c) | (groups == (c - 1) % num_groups)))
        rows = random.permutation(np.flatnonzero(classes % num_groups == c))
        for m, piece in zip(holders, np.array_split(rows, len(holders)), strict=True):
            pieces[m].append(piece)
    parts = [np.concatenate(mine) for mine in pieces]
    if min(map(len, parts)) == 0:
        raise ValueError(f"num-clients = {num_clients}: must be smaller: clients would hold no sample")
    return Partition(parts, groups)


def natural(users: NDArray[Any], num_clients: int, seed: int) -> list[Ints]:
    """Give each client the samples of one user: a writer of FEMNIST, a celebrity of CelebA.

    ``users`` (n,) are the users who made the samples. If there are more users than clients, clients get
    several; their numbers differ by at most 1. With fewer, a ValueError is raised. Flower Datasets:
    `NaturalIdPartitioner`; with fewer clients than users `GroupedNaturalIdPartitioner`.
    """
    distinct, user_numbers = np.unique(users, return_inverse=True)
    _check_clients(num_clients, len(distinct), "the number of users")
    client_of = np.empty(len(distinct), np.int64)
    client_of[np.random.default_rng(seed).permutation(len(distinct))] = np.arange(len(distinct)) % num_clients
    client = client_of[user_numbers]
    order = np.argsort(client, kind="stable")
    return np.split(order, np.cumsum(np.bincount(client, minlength=num_clients))[:-1])


def from_flower(partitioner: Any, labels: Ints, users: NDArray[Any] | None = None) -> list[Ints]:
    """Partition these labels (n,) with a new partitioner of Flower Datasets.

    The columns to partition by are ``label`` and, with ``users`` (n,), ``user``::

        from_flower(DirichletPartitioner(100, "label", alpha=0.3), labels)
    """
    from datasets import Dataset

    columns: dict[str, Any] = {"label": labels, "row": np.arange(len(labels))}
    if users is not None:
        columns["user"] = users
    partitioner.dataset = Dataset.from_dict(columns)
    return [
        partitioner.load_partition(m).with_format("numpy")[:]["row"]
        for m in range(partitioner.num_partitions)
    ]


def _check_alpha(alpha: float) -> None:
    if not (isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha = {alpha}: must be a number > 0")


class Form(NamedTuple):
    """A form of the setting ``partition``: a name, or name:number."""

    share: Callable[..., list[Ints] | Partition]  # (labels, num_clients, seed[, number])
    number: type[int] | type[float] | None = None  # the type after the colon; None if no number is allowed
    required: bool = False  # whether the number is required


FORMS: dict[str, Form] = {
    "skewed": Form(skewed, int),
    "balanced": Form(balanced, int),
    "power-law": Form(power_law, float),
    "dirichlet": Form(dirichlet, float, required=True),
    "dirichlet-balanced": Form(dirichlet_balanced, float, required=True),
    "shards": Form(label_shards, int),
    "label-split": Form(label_split, int),
    "groups": Form(label_groups, int),
    "natural": Form(natural),  # receives users in place of labels
}


def parse(text: str) -> tuple[str, int | float | None]:
    """Read the setting ``partition``: a name of `FORMS`, and its number.

    Raises ValueError without the name of the setting, which the caller adds.
    """
    name, colon, number = text.partition(":")
    if name not in FORMS:
        raise ValueError(f"must be one of {', '.join(map(_written, FORMS))}")
    form = FORMS[name]
    if not colon and not form.required:
        return name, None
    try:
        value = form.number(number) if form.number else None
    except ValueError:
        value = None
    if value is None or not (isfinite(value) and value > 0):
        kind = "number" if form.number is float else "whole number"
        raise ValueError(f"must be {_written(name)}" + (f" with a {kind} > 0" if form.number else ""))
    return name, value


def _written(name: str) -> str:
    form = FORMS[name]
    if form.number is None:
        return name
    placeholder = "X" if form.number is float else "N"
    return f"{name}:{placeholder}" if form.required else f"{name}[:{placeholder}]"


def share_out(
    partition: str, labels: Ints, num_clients: int, seed: int, users: NDArray[Any] | None = None
) -> Partition:
    """Distribute the samples by the setting ``partition``, see `FORMS`; ``natural`` needs the users (n,).

    Raises ValueError if the setting is invalid: its value and the allowed values in one line.
    """
    try:
        name, number = parse(partition)
    except ValueError as error:
        raise ValueError(f"partition = {partition!r}: {error}") from None
    form = FORMS[name]
    arguments: Sequence[Any] = () if number is None else (number,)
    if name == "natural":
        if users is None:
            raise ValueError(f"partition = {partition!r}: the data do not name the user of each sample")
        labels = users
    shared = form.share(labels, num_clients, seed, *arguments)
    return shared if isinstance(shared, Partition) else Partition(shared)
