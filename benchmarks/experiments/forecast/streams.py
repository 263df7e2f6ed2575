"""The test bed of the samplers: streams of update norms, and the least-squares problem of OSMD's section F.

A stream is one made-up history of norms, the same for every sampler; in `section_f` a model is trained by the
sampler's own draws. Both score a sampler by its cumulative regret, the sum over rounds of

    l_t(p_t) - min_q l_t(q),    l_t(p) = (1/K) sum_m a_m / p_m,    a_m = λ_m² ||g_m||²,

all clients' norms being known to the test bed. Everything is a function of the seed. Pure NumPy.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from strategies.numerics.arrays import Floats
from strategies.selectors import Feedback, Selector

SPREAD = 1.0
"""Standard deviation of the log norms of `_static`, which most streams start from."""


class Stream(NamedTuple):
    """A history of norms.

    Attributes
    ----------
    sizes : ndarray, shape (M,)
        Client sizes, positive.
    norms : ndarray, shape (T, M)
        ||g_m|| in round t.
    """

    sizes: Floats
    norms: Floats


MakeSelector = Callable[[Floats], Selector]
"""Makes the selector under test for clients of these sizes (M,)."""


def _static(rng: np.random.Generator, m: int, t: int) -> Stream:
    """Norms that never change, lognormal with spread 1; equal sizes."""
    return Stream(np.ones(m), np.tile(rng.lognormal(0, SPREAD, m), (t, 1)))


def _decay(rng: np.random.Generator, m: int, t: int) -> Stream:
    """Shrink the static norms together, to a thousandth."""
    sizes, norms = _static(rng, m, t)
    return Stream(sizes, norms * np.geomspace(1, 1e-3, t)[:, None])


def _drift(rng: np.random.Generator, m: int, t: int) -> Stream:
    """Each log norm is a random walk with steps of .03."""
    sizes, norms = _static(rng, m, t)
    return Stream(sizes, norms * np.exp(rng.normal(0, 0.03, (t, m)).cumsum(axis=0)))


def _jumps(rng: np.random.Generator, m: int, t: int) -> Stream:
    """Let a tenth of the clients jump thirtyfold in the middle."""
    sizes, norms = _static(rng, m, t)
    norms[t // 2 :, rng.choice(m, max(1, m // 10), replace=False)] *= 30
    return Stream(sizes, norms)


def _noise(spread: float) -> Callable[[np.random.Generator, int, int], Stream]:
    def stream(rng: np.random.Generator, m: int, t: int) -> Stream:
        sizes, norms = _static(rng, m, t)
        return Stream(sizes, norms * rng.lognormal(0, spread, (t, m)))

    stream.__doc__ = f"The static norms times lognormal noise of spread {spread:g}."
    return stream


def _sized(power: float, noise: float, own: float) -> Callable[[np.random.Generator, int, int], Stream]:
    def stream(rng: np.random.Generator, m: int, t: int) -> Stream:
        sizes = rng.lognormal(0, 1.5, m)
        r = sizes**power * rng.lognormal(0, own, m) * rng.lognormal(0, noise, (t, m))
        return Stream(sizes, r / sizes)

    stream.__doc__ = (
        f"Lognormal sizes of spread 1.5; λ ||g|| goes with size^{power:g}, times a lognormal of spread "
        f"{own:g} of each client's own and noise of spread {noise:g}."
    )
    return stream


def _equal(rng: np.random.Generator, m: int, t: int) -> Stream:
    """All norms are 1."""
    return Stream(np.ones(m), np.ones((t, m)))


def _everybody(rng: np.random.Generator, m: int, t: int) -> Stream:
    """Raise the static norms a hundredfold for everybody from the middle on."""
    sizes, norms = _static(rng, m, t)
    norms[t // 2 :] *= 100
    return Stream(sizes, norms)


def _cycle(rng: np.random.Generator, m: int, t: int) -> Stream:
    """Two halves of the clients take turns at being tenfold, 100 rounds each."""
    sizes, norms = _static(rng, m, t)
    first = np.arange(m) < m // 2
    turn = (np.arange(t) // 100 % 2 == 0)[:, None]
    return Stream(sizes, norms * np.where(first == turn, 10, 1))


def _zeros(rng: np.random.Generator, m: int, t: int) -> Stream:
    """80 % of the clients always send exactly 0, the others their static norm."""
    sizes, norms = _static(rng, m, t)
    norms[:, rng.choice(m, 4 * m // 5, replace=False)] = 0
    return Stream(sizes, norms)


STREAMS: dict[str, Callable[[np.random.Generator, int, int], Stream]] = {
    "static": _static,
    "common decay": _decay,
    "drift": _drift,
    "a tenth jumps": _jumps,
    "noise 1": _noise(1),
    "noise 2": _noise(2),
    "sizes uninformative": _sized(0, 0, 1.5),
    "sizes anti-informative": _sized(-1, 0, 0.5),
    "sizes exact, noise 1": _sized(1, 1, 0),
    "all equal": _equal,
    "everybody x100": _everybody,
    "half-half cycle": _cycle,
    "80 % zeros": _zeros,
}


def regret_on_stream(make: MakeSelector, stream: Stream, clients_per_round: int) -> float:
    """Return the cumulative regret of a selector on a stream.

    Parameters
    ----------
    make : callable
        Makes the selector from the sizes.
    stream : Stream
        The history; as many rounds are played as it has.
    clients_per_round : int
        K of the loss.

    Returns
    -------
    float
        Regret >= 0, in the stream's unit: compare it with another selector's on the same stream.
    """
    selector = make(stream.sizes)
    r = stream.norms * (stream.sizes / stream.sizes.sum())
    regret = 0.0
    for round, norms in enumerate(stream.norms, start=1):
        regret += excess(r[round - 1], selector.probabilities)
        selection = selector.select(round)
        selector.update(round, selection, feedback_of(norms[selection.clients]))
    return regret / clients_per_round


def make_stream(name: str, seed: int, num_clients: int = 100, num_rounds: int = 1000) -> Stream:
    """Return the stream of one of `STREAMS`' names for a seed."""
    return STREAMS[name](np.random.default_rng(seed), num_clients, num_rounds)


class SectionFRun(NamedTuple):
    """What `section_f` measured.

    Attributes
    ----------
    regret : float
        Cumulative regret.
    loss : float
        Training loss at the end, over all samples.
    """

    regret: float
    loss: float


def section_f(
    make: MakeSelector,
    sigma: float,
    seed: int,
    *,
    num_clients: int = 100,
    clients_per_round: int = 5,
    num_rounds: int = 1000,
    condition: float = 25.0,
    step_size: float = 0.1,
) -> SectionFRun:
    """Train the linear regression of OSMD's appendix F with a selector's draws.

    Each client has n = 100 samples y = <w*, x> + N(0, 0.1²), w* ~ N(10, 3), d = 10, x ~ N(0, s_m Σ) with
    Σ_jj = κ^((j-1)/(d-1) - 1); s_m lognormal with spread σ, the largest scaled to 10. Gradients are means
    over mini-batches of B = 10 of a client's samples, drawn without replacement, and w starts at 0.

    Regrets differ by orders of magnitude from seed to seed. "Regret over uniform's" is the ratio of the means
    over seeds in the published figures; the mean of the ratios weighs all seeds alike and is some percent
    larger.

    Parameters
    ----------
    make : callable
        Makes the selector from the sizes (all 1).
    sigma : float
        σ, how unlike the clients are; the paper has 1, 3 and 10.
    seed : int
        Seed of data and mini-batches.
    num_clients, clients_per_round, num_rounds : int
        M, K and T.
    condition, step_size : float
        κ and μ.
    """
    m, n, d, batch = num_clients, 100, 10, 10
    rng = np.random.default_rng(seed)
    truth = rng.normal(10, math.sqrt(3), d)
    scale = rng.lognormal(0, sigma, m)
    scale *= 10 / scale.max()
    deviations = np.sqrt(scale[:, None] * condition ** (np.arange(d) / (d - 1) - 1))
    x = rng.normal(size=(m, n, d)) * deviations[:, None]
    y = x @ truth + rng.normal(0, 0.1, (m, n))

    selector = make(np.ones(m))
    w, regret = np.zeros(d), 0.0
    for round in range(1, num_rounds + 1):
        picks = np.arange(m)[:, None], rng.random((m, n)).argpartition(batch)[:, :batch]
        residuals = x[picks] @ w - y[picks]
        g = (residuals[:, None] @ x[picks])[:, 0] / batch
        norms = np.linalg.norm(g, axis=1)
        regret += excess(norms / m, selector.probabilities)
        selection = selector.select(round)
        w = w - step_size * selection.weights @ g[selection.clients]
        selector.update(round, selection, feedback_of(norms[selection.clients]))
    return SectionFRun(regret / clients_per_round, float(((x @ w - y) ** 2).mean() / 2))


def excess(r: Floats, p: Floats) -> float:
    """Return K (l(p) - min_q l(q)) for r_m = λ_m ||g_m||, the minimum being at q in proportion to r."""
    return float((r**2 / p).sum() - r.sum() ** 2)


def feedback_of(norms: Floats) -> Feedback:
    """Return what a selector is told when all it chose answer with these norms (S,)."""
    missing = np.full(norms.size, np.nan)
    return Feedback(norms, missing, missing, missing, np.ones(norms.size, dtype=np.bool_))
