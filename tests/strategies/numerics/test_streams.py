"""Random streams are functions of (seed, round, purpose)."""

import numpy as np
import pytest

from strategies.numerics.streams import generator


def test_same_arguments_give_the_same_stream():
    np.testing.assert_array_equal(generator(3, 7, "select").random(5), generator(3, 7, "select").random(5))


def test_seed_round_and_purpose_each_give_another_stream():
    streams = [(3, 7, "select"), (4, 7, "select"), (3, 8, "select"), (3, 7, "poll"), (7, 3, "select")]
    assert len({generator(*arguments).random() for arguments in streams}) == len(streams)


def test_a_seed_beyond_32_bits_does_not_run_into_the_round():
    assert generator(5 + (1 << 32), 0, "select").random() != generator(5, 1, "select").random()


@pytest.mark.parametrize(("seed", "round", "named"), [(-1, 1, "seed = -1"), (1, -2, "round = -2")])
def test_negative_numbers_are_refused(seed, round, named):
    with pytest.raises(ValueError, match=named):
        generator(seed, round, "select")
