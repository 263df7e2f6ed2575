import numpy as np
import pytest

from strategies.numerics import sketches


def sketch(vector, cut=sketches.LONGEST):
    total = np.zeros(sketches.WIDTH)
    for number, begin in enumerate(range(0, vector.size, cut)):
        total += sketches.of_chunk(vector[None, begin : begin + cut], number)[0]
    return total


@pytest.mark.parametrize("size", [1, 10, 256])
def test_short_vectors_keep_their_inner_products(size):
    u, v = np.random.default_rng(0).normal(size=(2, size))
    assert sketch(u) @ sketch(v) == pytest.approx(u @ v)


@pytest.mark.parametrize("size", [300, 16384, 16385, 100_000])
def test_cosines_of_long_vectors_are_kept_up_to_chance(size):
    rng = np.random.default_rng(1)
    errors = []
    for _ in range(30):
        u, noise = rng.normal(size=(2, size)).astype(np.float32)
        v = u + noise
        own, theirs = sketch(u), sketch(v)
        cosine = own @ theirs / np.linalg.norm(own) / np.linalg.norm(theirs)
        errors.append(cosine - u @ v / np.linalg.norm(u) / np.linalg.norm(v))
    assert abs(np.mean(errors)) < 0.04
    assert np.std(errors) < 2 / np.sqrt(sketches.WIDTH)


def test_equal_chunks_do_not_cancel_or_add_up():
    """A vector that repeats itself has different signs in each chunk."""
    part = np.random.default_rng(2).normal(size=sketches.LONGEST)
    repeated = np.tile(part, 8)
    ratio = np.linalg.norm(sketch(repeated)) ** 2 / np.linalg.norm(repeated) ** 2
    assert 0.6 < ratio < 1.5


def test_a_sketch_is_linear():
    u, v = np.random.default_rng(3).normal(size=(2, 1000))
    np.testing.assert_allclose(sketch(2 * u - v), 2 * sketch(u) - sketch(v), atol=1e-12)
