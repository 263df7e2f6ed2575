"""DELTA's bounds: of FedIS (Theorem D.1) and FedDELTA (Theorem 3.5), and their variance terms Φ and Φ̃.

In the paper n of m clients train in a round of K local steps. F_i is the loss of client i, f the mean of all
F_i, and x the model. The bounds are those of min_t E||∇f(x_t)||² over T rounds (sections 3.2 to 3.4, F).
"""

from typing import NamedTuple

import numpy as np

from strategies.numerics.arrays import Floats


class Constants(NamedTuple):
    """The constants of the bounds that do not describe the clients: L, η_L, η, K and n."""

    smoothness: float
    local_rate: float
    global_rate: float
    steps: int
    selected: int

    def alphas(self) -> tuple[float, float]:
        """Return α1 = 20 K² L η_L and α2 = 5 K L η_L + η/n (Corollary 3.7)."""
        rate = self.steps * self.smoothness * self.local_rate
        return 20 * self.steps * rate, 5 * rate + self.global_rate / self.selected


def phi_tilde(of: Constants, p: Floats, diversities: Floats, variances: Floats, replacement: bool) -> float:
    """Return Φ̃, the variance term of FedDELTA's bound: eq. 11 with replacement, eq. 10 without.

    With replacement it is ``L η_L/(2 m²) sum_i (α1 ζ_i² + α2 σ_i²)/p_i``, for probabilities p, ζ_i = ||∇F_i -
    ∇f|| and the variances σ_i² of a gradient between mini-batches, all (m,). Without replacement, the terms
    with α1 and with the summand 5 K L η_L of α2 have the factor 1/(mn) instead of 1/m², which makes Φ̃ larger
    although such draws have less variance.
    """
    m = p.size
    pairs = m**2 if replacement else m * of.selected
    local = 5 * of.smoothness**2 * of.steps * of.local_rate**2 / (2 * pairs)
    drawn = of.smoothness * of.local_rate * of.global_rate / (2 * of.selected * m**2)
    terms = local * (variances + 4 * of.steps * diversities**2) + drawn * variances
    return float((terms / p).sum())


def best_probabilities(of: Constants, diversities: Floats, variances: Floats) -> Floats:
    """Return DELTA's p (m,), which minimises Φ̃ with replacement (eq. 13)."""
    alpha_1, alpha_2 = of.alphas()
    scores = np.sqrt(alpha_1 * diversities**2 + alpha_2 * variances)
    p: Floats = scores / scores.sum()
    return p


def delta_gain(of: Constants, diversities: Floats, variances: Floats) -> float:
    """Return Φ̃_uniform / Φ̃_DELTA >= 1, with replacement (eq. 84; section 3.4 has α1 and α2 swapped)."""
    alpha_1, alpha_2 = of.alphas()
    squares = alpha_1 * diversities**2 + alpha_2 * variances
    return float(squares.size * squares.sum() / np.sqrt(squares).sum() ** 2)


def is_gain(norms: Floats) -> float:
    """Return the second moment of the estimate of uniform sampling divided by that of IS (eq. 78), >= 1."""
    return float(norms.size * (norms**2).sum() / norms.sum() ** 2)


def phi(of: Constants, spread: float, noise: float, num_clients: int, variance: float) -> float:
    """Return Φ, the variance term of FedIS' bound, times the constant c of Theorem D.1 (eq. 29).

    `spread` and `noise` are σ_G² and σ_L², bounds of ||∇F_i - ∇f||² and of the variance of a gradient between
    mini-batches. (Assumption 3 bounds ||∇F_i||² by (A² + 1) ||∇f||² + σ_G², which is another bound.)
    `variance` is V, the mean of ||ĝ_i/(m p_i) - mean ĝ||² over i drawn from p, for the sums ĝ_i of K
    gradients. Eq. 29 has the sum σ_L² + 4 K σ_G²; eq. 4 prints the square of this sum.
    """
    size, local, steps = of.smoothness, of.local_rate, of.steps
    return (
        5 * local**2 * size**2 * steps / 2 * (noise + 4 * steps * spread)
        + of.global_rate * local * size / (2 * num_clients) * noise
        + size * of.global_rate * local / (2 * of.selected * steps) * variance
    )


# The bounds of min_t E||∇f(x_t)||² over T rounds.


def crude_variances(
    of: Constants, gradient: float, spread: float, slope: float, excess: float
) -> tuple[float, float]:
    """Return two bounds of V under IS: K² G² (eqs. 39, 77), and K² σ_G² + K² (A² + 1) ||∇f||² (eq. 40).

    `gradient` is G², which bounds the squared norm of every stochastic gradient, `slope` is ||∇f||² and
    `excess` A². Eq. 40 leaves out the noise of mini-batches: it applies Assumption 3, which bounds exact
    gradients, to stochastic ones. Eqs. 39, 40 and 76 print the norm of a sum where the sum of the norms is
    meant.
    """
    squares = of.steps**2
    return squares * gradient, squares * (spread + (excess + 1) * slope)


def is_margin(of: Constants, excess: float) -> float:
    """Return the supremum of the constants c that Theorem D.1 allows, for A² = `excess`.

    It is 1/2 - 10 L² K² (A² + 1) η_L² - L η K (A² + 1) η_L/(2n), as in eq. 41. The theorem prints L² for L in
    the last term.

    Raises ValueError if the rates do not fulfil η_L < 1/(8LK), η η_L <= 1/(KL) and c > 0. The proof needs
    the second condition (after eq. 35); Theorems 3.1 and D.1 print η <= 1/(η_L L), without K.
    """
    reach = of.steps * of.smoothness * of.local_rate
    c = 0.5 - 10 * reach**2 * (excess + 1) - of.global_rate * reach * (excess + 1) / (2 * of.selected)
    return _allowed(of, c, reach < 1 / 8)


def delta_margin(of: Constants, p: Floats, excess: float) -> float:
    """Return the supremum of the constants c that eq. 60 allows, for A² = `excess`.

    It is 1/2 - 20 K² η_L² L² (A² + 1)/m² sum 1/p.

    Raises ValueError if the rates do not fulfil η_L <= 1/(8LK), η η_L <= 1/(KL) and c > 0. The proof takes
    the first condition from Lemma E.8; Theorem 3.5 does not print it. The third condition is the proof's
    η_L < 1/(2 sqrt(10 (A² + 1)) K L sqrt((1/m) sum 1/(m p))). Theorem 3.5 prints it without A² + 1 and with
    1/n for 1/m; the proof's last line has K L inside the first root.
    """
    reach = of.steps * of.smoothness * of.local_rate
    c = 0.5 - 20 * reach**2 * (excess + 1) * float((1 / p).sum()) / p.size**2
    return _allowed(of, c, reach <= 1 / 8)


def _allowed(of: Constants, c: float, small: bool) -> float:
    if not small or c <= 0 or of.global_rate * of.local_rate * of.steps * of.smoothness > 1:
        raise ValueError(f"local_rate = {of.local_rate}, global_rate = {of.global_rate}: too large (c = {c})")
    return c


def is_bound(of: Constants, c: float, rounds: int, gap: float, variance_term: float) -> float:
    """Return gap/(c η η_L K T) + variance_term/c (Theorem D.1; eq. 28 prints no η, eq. 37 has it).

    `gap` is f(x_0) - f*, and `variance_term` the mean over the rounds of `phi`, or of `phi_tilde` for
    FedDELTA.
    """
    return (gap / (of.global_rate * of.local_rate * of.steps * rounds) + variance_term) / c


def delta_bound(of: Constants, c: float, rounds: int, gap: float, variance_term: float) -> float:
    """Return Theorem 3.5's bound: twice eq. 62 (see eq. 48), so the theorem's c is half of eq. 60's `c`.

    The factor 2 is not needed. Eqs. 6, 8 and 44 print + χ², the gap between the gradients of the surrogate
    objective f̃ and f, but E||∇f||² = E||∇f̃||² - χ² by eq. 21 (Lemma C.2), so eq. 62 alone bounds the
    gradient.
    """
    return 2 * is_bound(of, c, rounds, gap, variance_term)
