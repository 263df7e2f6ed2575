"""Whether `cohort advise` is right: its intervals and its advice on streams of norms with a known truth.

Each selector in `LOGS` draws clients from each stream of `benchmarks.experiments.forecast.streams`. The log
of these draws and of the drawn clients' norms is studied as `cohort advise` studies the history of a run.

- An interval estimates the variance under the probabilities of a replayed selector, relative to uniform
sampling. It is right if it contains the true value, from the norms of all clients; 95 % should be.

- Advice is right if the advised selector's variance is at most 5 % above the smallest. For these variances,
each selector draws for itself on the same stream. No advice is neither right nor wrong.

The table also shows the error of replaying a selector instead of letting it draw: the median over the seeds
of ``|log(replayed / own)|``, where both variances are relative to uniform sampling.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiments.forecast.streams import STREAMS, Stream, make_stream
from benchmarks.experiments.methods import OWN_DRAWS, Method
from benchmarks.experiments.report import markdown
from strategies.advice import BASELINE, Evidence, LoggedRound, advise, collect
from strategies.advice.log import feedback_of
from strategies.numerics.arrays import Floats
from strategies.selectors import Selector

LOGS = (BASELINE, "forecast")
STUDIED = {
    **{name: Method(name) for name in (BASELINE, "md", "avare")},
    "adaptive-osmd x100": Method("adaptive-osmd", {"learning_rate_multiplier": 100.0}),
    "forecast": Method("forecast", OWN_DRAWS),
}
FIXED = frozenset({BASELINE, "md"})
ALLOWED = 1.05
"""Advice is right if the variance is at most this many times the smallest variance."""
EVERY = "all streams"


class Setting(NamedTuple):
    """The size of the streams."""

    rounds: int
    clients: int
    per_round: int


class Case(NamedTuple):
    """The result of one log of one stream."""

    log: str  # the selector that drew the log
    stream: str
    seed: int
    covered: dict[str, bool]  # by selector: whether the interval contains the true variance
    width: dict[str, float]  # by selector: log(high / low) / 2
    gap: dict[str, float]  # by selector: |log(replayed / own)|
    advised: str | None
    right: bool  # whether the advice is right; False if there is none


def new(name: str, stream: Stream, setting: Setting, seed: int) -> Selector:
    """Return a new selector, by its name in `STUDIED`."""
    return STUDIED[name].made(stream.sizes, setting.per_round, seed, setting.rounds)


def own_variances(stream: Stream, setting: Setting, seed: int) -> dict[str, float]:
    """Let each selector draw for itself; return the sum over rounds and clients of a_m / q_m.

    In a round, a_m is (λ_m times the norm of client m)², and q_m is the selector's probability of client m.
    """
    sums = {}
    a = (stream.norms * stream.sizes / stream.sizes.sum()) ** 2
    for name in STUDIED:
        selector, total = new(name, stream, setting, seed + 2000), 0.0
        for number, norms in enumerate(stream.norms, start=1):
            total += float((a[number - 1] / selector.probabilities).sum())
            if name not in FIXED:
                selection = selector.select(number)
                selector.update(number, selection, feedback_of(norms[selection.clients]))
        sums[name] = total
    return sums


def studied(log: str, stream: Stream, setting: Setting, seed: int) -> tuple[Evidence, Floats]:
    """Let the selector ``log`` draw from a stream; return the evidence of its log, and true variances (S,).

    These are under the probabilities of the S replayed selectors, relative to uniform sampling.
    """
    logger = new(log, stream, setting, seed)
    nobody = np.empty(0, dtype=np.int64)
    rounds = []
    for number, norms in enumerate(stream.norms, start=1):
        selection = logger.select(number)
        told = norms[selection.clients]
        rounds.append(LoggedRound.of(number, stream.sizes, selection, told, nobody))
        logger.update(number, selection, feedback_of(told))
    a = (stream.norms * stream.sizes / stream.sizes.sum()) ** 2
    truth = np.zeros(len(STUDIED))

    def watch(round: LoggedRound, distributions: Floats) -> None:
        truth[:] += (a[round.number - 1] / distributions).sum(axis=1)

    selectors = {name: new(name, stream, setting, seed + 1000) for name in STUDIED}
    evidence, _ = collect(rounds, selectors, log in FIXED, watch)
    return evidence, truth / truth[0]


def play(setting: Setting, seed: int) -> list[Case]:
    """Return the cases of one seed: each stream, with each log."""
    cases = []
    for stream_name in STREAMS:
        stream = make_stream(stream_name, seed, setting.clients, setting.rounds)
        own = own_variances(stream, setting, seed)
        smallest = min(own.values())
        for log in LOGS:
            evidence, truth = studied(log, stream, setting, seed)
            covered, width, gap = {}, {}, {}
            for name, true in zip(STUDIED, truth.tolist(), strict=True):
                _, low, high = evidence.against(name)
                covered[name] = bool(low * (1 - 1e-9) <= true <= high * (1 + 1e-9))
                width[name] = math.log(high / low) / 2
                gap[name] = abs(math.log(true * own[BASELINE] / own[name]))
            advised = advise(evidence, FIXED).selector
            right = advised is not None and own[advised] <= ALLOWED * smallest
            cases.append(Case(log, stream_name, seed, covered, width, gap, advised, right))
    return cases


def table(cases: Sequence[Case], log: str) -> list[str]:
    """Return the Markdown table of the logs that one selector drew."""
    names = [name for name in STUDIED if name != BASELINE]
    lines = [["stream", *names, "right", "cannot tell", "wrong"]]
    for stream in (*STREAMS, EVERY):
        chosen = [case for case in cases if case.log == log and stream in (case.stream, EVERY)]
        cells = [stream]
        for name in names:
            covered = np.mean([case.covered[name] for case in chosen])
            width = np.median([case.width[name] for case in chosen])
            gap = np.median([case.gap[name] for case in chosen])
            cells.append(f"{100 * covered:.0f} (±{100 * width:.0f}, {100 * gap:.0f})")
        right = sum(case.right for case in chosen)
        silent = sum(case.advised is None for case in chosen)
        lines.append([*cells, *map(str, (right, silent, len(chosen) - right - silent))])
    return markdown(lines)


def measure(seeds: range, setting: Setting, jobs: int) -> Iterator[dict[str, Any]]:
    """Yield each case. The seeds are divided among `jobs` processes."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for part in pool.map(partial(play, setting), seeds):
            yield from (case._asdict() for case in part)
