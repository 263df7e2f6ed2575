"""The variance terms of DELTA's bounds beside the variance of the aggregate, on given updates.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023),
sections 3.2 to 3.4 and appendix F. `bounds` has the terms, `synthetic` the updates.
"""

import numpy as np

from benchmarks.experiments.delta import bounds
from benchmarks.experiments.delta.synthetic import PAPER, estimate_variance, updates_with_common_part
from benchmarks.experiments.report import Cell, Experiment, Outcome

OF = bounds.Constants(smoothness=1.0, local_rate=0.01, global_rate=1.0, steps=5, selected=5)


def run_bounds(seed: int, quick: bool = False) -> Outcome:
    """Compare the terms and the variance of uniform sampling, IS and DELTA. The quick form is the same."""
    rng = np.random.default_rng(seed)
    cells: dict[Cell, float] = {}
    for row, g in updates_with_common_part(rng).items():
        m, mean = len(g), g.mean(axis=0)
        zeta, norms = np.linalg.norm(g - mean, axis=1), np.linalg.norm(g, axis=1)
        sigma = g.shape[1] * rng.lognormal(0, 1, m)  # as large as the squared norms of the clients' own parts
        uniform = np.full(m, 1 / m)
        chosen = {"DELTA": bounds.best_probabilities(OF, zeta, sigma), "IS": norms / norms.sum()}
        for label, p in chosen.items():
            for replacement, how in ((True, "Φ̃"), (False, "Φ̃ w/o repl.")):
                terms = [bounds.phi_tilde(OF, each, zeta, sigma, replacement) for each in (uniform, p)]
                cells[row, f"{how}, {label}"] = terms[0] / terms[1]
            variances = [estimate_variance(g, each, 1) for each in (uniform, p)]
            # The gradients do not change over the local steps, so an update is K times a gradient.
            terms = [
                bounds.phi(OF, float((zeta**2).max()), float(sigma.max()), m, OF.steps**2 * each)
                for each in variances
            ]
            cells[row, f"Φ, {label}"] = terms[0] / terms[1]
            cells[row, f"variance, {label}"] = variances[0] / variances[1]
        cells[row, "eq. 84"] = bounds.delta_gain(OF, zeta, sigma)
        cells[row, "eq. 78"] = bounds.is_gain(norms)
    return Outcome(cells)


EXPERIMENTS = (
    Experiment(
        name="delta-bounds",
        title="the variance terms of DELTA's bounds, and the variance: uniform sampling's over each method's",
        source=f"{PAPER}, eqs. 4, 10, 11, 29, 76 to 78 and 82 to 84, section 3.4; the data are ours",
        run=run_bounds,
        claim="DELTA reduces Φ̃ and with it the variance of convergence, more than IS.",
        note="Above 1 a method is better than uniform sampling. The updates are those of delta-variance; σ² "
        "of a gradient is 20 times lognormal(0, 1). L = 1, η_L = .01, η = 1, K = 5, n = 5. Φ̃ is the term "
        "of FedDELTA's bound, with and without replacement, Φ that of FedIS' bound for gradients that do "
        "not change over the local steps, and variance is that of the aggregate without the noise of "
        "mini-batches, exactly. Eq. 84 is Φ̃ for DELTA in closed form, eq. 78 the ratio of the second "
        "moments for IS.",
    ),
)
