"""The synthetic problem of the OSMD paper's appendix F, as a test of a selector."""

import numpy as np

from benchmarks.experiments.osmd.least_squares import Trial, train, unlike_clients
from strategies.selectors import create

M, K, ROUNDS = 100, 5, 1000


def relative_regret(make, sigma, seed):
    """Return the cumulative regret of a selector over that of uniform sampling, after 1000 rounds.

    ``make`` gets the norms of all clients' mini-batch gradients before training (M,), and the seed.
    """
    rng = np.random.default_rng(seed)
    problem = unlike_clients(rng, sigma, M)
    uniform = create("uniform", M, clients_per_round=K, seed=seed)
    (start,) = train(problem, [Trial(uniform)], np.random.default_rng(seed + 1000), num_rounds=1)
    trials = [Trial(uniform), Trial(make(start.roots[0] * M, seed))]
    base, track = train(problem, trials, rng, num_rounds=ROUNDS)
    return float(track.regret[-1] / base.regret[-1])
