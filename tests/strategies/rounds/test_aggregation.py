import io
from math import inf, nan, sqrt

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from strategies.flower.arrays import ReceivedArrays, decode, encode, to_record
from strategies.rounds.aggregation import _CHUNK, Model, UnusableError, Update

LONG = 2 * _CHUNK + 17  # three chunks


def rng():
    return np.random.default_rng(5)


MODELS = {
    "float32": {"w": rng().standard_normal((3, LONG), np.float32), "b": np.ones(3, np.float32)},
    "float64": {"w": rng().standard_normal(LONG)},
    "float16": {"w": rng().standard_normal(100).astype(np.float16)},
    "counters": {"n": np.arange(50, dtype=np.int32), "flag": np.array([True, False])},
    "columns first": {"w": np.asfortranarray(rng().standard_normal((40, 30), np.float32))},
    "strided": {"w": rng().standard_normal((40, 30), np.float32)[::2, ::3]},
    "big-endian": {"w": rng().standard_normal(40).astype(">f4")},
    "one number and none": {"s": np.array(2.5, np.float32), "e": np.zeros((0, 3), np.float32)},
    "no arrays": {},
}


def trained(model, seed):
    draws = np.random.default_rng(seed)
    return {
        name: array ^ (draws.random(array.shape) < 0.5)
        if array.dtype.kind == "b"
        else (array + 3 * draws.standard_normal(array.shape)).astype(array.dtype)
        for name, array in model.items()
    }


def wide(arrays):
    return {name: np.asarray(array, np.float64) for name, array in arrays.items()}


@pytest.mark.parametrize("kind", MODELS)
def test_the_sums_agree_with_the_formula(kind):
    """Norms, sums and distances are those of NumPy in float64, to the precision of the type."""
    arrays = MODELS[kind]
    model, reference = Model(arrays), wide(arrays)
    sent = [trained(arrays, seed) for seed in range(3)]
    baseline = {name: np.full(array.shape, 0.25) for name, array in arrays.items()}
    updates = [Update(sent[0]), Update(sent[1], 0.5, baseline), Update(sent[2], 1.0, baseline)]
    coefficients = [0.2, 1.5, 0.7]
    differences = [
        {
            name: u.scale * (wide(dict(u.sent))[name] - reference[name] - (0.25 if u.baseline else 0.0))
            for name in arrays
        }
        for u in updates
    ]

    def norm(of):
        return sqrt(sum(float((array**2).sum()) for array in of.values()))

    step, lengths = model.nothing(), []
    for coefficient, update in zip(coefficients, updates, strict=True):
        lengths.append(model.examine(update, step, coefficient))
    expected = [norm(d) / u.scale for d, u in zip(differences, updates, strict=True)]
    assert lengths == pytest.approx(expected, rel=1e-5)
    folded = model.fold(zip(coefficients, updates, strict=True))
    assert {name: a.tobytes() for name, a in folded.items()} == {
        name: a.tobytes() for name, a in step.items()
    }
    sums = {name: sum(c * d[name] for c, d in zip(coefficients, differences, strict=True)) for name in arrays}
    for name, total in sums.items():
        np.testing.assert_allclose(folded[name], np.reshape(total, -1), rtol=1e-4, atol=1e-4)
    distance = norm({name: differences[1][name] - 0.3 * total for name, total in sums.items()})
    assert model.distance(updates[1], folded, 0.3) == pytest.approx(distance, rel=1e-4)
    clipped = model.clipped(updates[1])
    moved = model.moved(folded, mean=baseline)
    assert moved.keys() == arrays.keys()
    for name, array in arrays.items():
        assert moved[name].dtype == array.dtype
        assert moved[name].shape == array.shape == clipped[name].shape
        np.testing.assert_allclose(clipped[name], 0.25 + differences[1][name], rtol=1e-4, atol=1e-4)
        landed = reference[name] + sums[name] + 0.25
        if array.dtype.kind == "b":
            assert (moved[name] == (np.rint(landed) > 0)).all()
        else:
            slack = {"i": 0.51, "f": 1e-4 if array.dtype.itemsize > 2 else 1e-2}[array.dtype.kind]
            np.testing.assert_allclose(
                np.asarray(moved[name], np.float64), landed, rtol=1e-2 * slack, atol=slack
            )


def test_the_model_and_the_sent_arrays_are_not_changed():
    arrays = {"w": np.zeros(3, np.float32)}
    sent = {"w": np.ones(3, np.float32)}
    for each in (arrays, sent):
        each["w"].flags.writeable = False
    model = Model(arrays)
    step = model.nothing()
    model.examine(Update(sent), step, 1.0)
    moved = model.moved(step)
    assert moved["w"].tolist() == [1, 1, 1]
    assert moved["w"].flags.writeable


@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("where", [0, _CHUNK, LONG - 1])
def test_nan_and_infinity_are_found_at_any_position(bad, where):
    sent = np.zeros(LONG, np.float32)
    sent[where] = bad
    with pytest.raises(UnusableError, match="'w' holds NaN or infinite values"):
        Model({"w": np.zeros(LONG, np.float32)}).examine(Update({"w": sent}))


def test_norms_beyond_float32_are_finite():
    model = Model({"w": np.zeros(4, np.float32)})
    assert model.examine(Update({"w": np.full(4, 3e38, np.float32)})) == pytest.approx(6e38)
    assert model.examine(Update({"w": np.full(4, 1e-30, np.float32)})) == pytest.approx(2e-30)
    with pytest.raises(UnusableError, match="norm of the update is not finite"):
        Model({"w": np.zeros(4)}).examine(Update({"w": np.full(4, 1e200)}))


def test_a_step_beyond_the_range_of_the_type_is_none():
    model = Model({"w": np.zeros(2, np.float16)})
    assert model.moved(model.fold([(1.0, Update({"w": np.full(2, 6e4, np.float16)}))])) is not None
    assert model.moved(model.fold([(2.0, Update({"w": np.full(2, 6e4, np.float16)}))])) is None
    model = Model({"w": np.zeros(2, np.float32)})
    assert model.moved(model.fold([(1e300, Update({"w": np.ones(2, np.float32)}))])) is None


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_integers_stay_within_their_type(dtype):
    limits = np.iinfo(dtype)
    model = Model({"n": np.array([limits.max, limits.max // 2], dtype)})
    up = model.moved({"n": np.array([1e30, 0.4])})
    down = model.moved({"n": np.array([-1e30, -0.4])})
    assert int(up["n"][0]) == pytest.approx(limits.max, rel=1e-15)
    assert int(down["n"][0]) == limits.min
    if limits.max < 1e6:
        assert up["n"][1] == down["n"][1] == limits.max // 2


def test_only_one_array_of_the_models_size_is_allocated():
    """The peak of NumPy's allocations in a round of ten replies: the step, and less than a tenth more."""
    import tracemalloc

    size = 2_000_000
    arrays = {"w": np.zeros(size, np.float32)}
    sent = [{"w": np.full(size, float(i), np.float32)} for i in range(10)]
    tracemalloc.start()
    model = Model(arrays)
    step = model.nothing()
    for each in sent:
        model.examine(Update(each), step, 0.1)
    moved = model.moved(step)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert moved["w"][0] == pytest.approx(4.5)
    assert peak < 1.1 * 4 * size


# --- the wire ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_arrays_are_encoded_as_flower_does_and_decoded_without_a_copy(kind):
    for array in MODELS[kind].values():
        ours, flowers = encode(array), Array(array)
        assert np.array_equal(ours.numpy(), array)
        assert (ours.dtype, ours.shape, ours.stype) == (flowers.dtype, flowers.shape, flowers.stype)
        if array.flags.c_contiguous:
            assert ours.data == flowers.data
        for message in (ours, flowers):
            decoded = decode(message)
            assert np.array_equal(decoded, array)
            assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
            assert not decoded.flags.owndata
            assert not decoded.flags.writeable


def npy(array, *, cut=0):
    good = Array(array)
    return Array(good.dtype, good.shape, good.stype, good.data[: len(good.data) - cut])


def object_array():
    from io import BytesIO

    file = BytesIO()
    np.save(file, np.array([{}, 1], dtype=object), allow_pickle=True)
    return Array("object", (2,), "numpy.ndarray", file.getvalue())


def archive():
    from io import BytesIO

    file = BytesIO()
    np.savez(file, w=np.zeros(2))
    return Array("float64", (2,), "numpy.ndarray", file.getvalue())


@pytest.mark.parametrize(
    "bad",
    [
        npy(np.zeros(5), cut=1),
        npy(np.zeros(5), cut=41),
        object_array(),
        archive(),
        Array("float32", (2,), "numpy.ndarray", b""),
        Array("float32", (2,), "numpy.ndarray", b"junk"),
        Array("float32", (2,), "torch.Tensor", Array(np.zeros(2)).data),
    ],
    ids=["torn", "no data", "objects", "archive", "empty", "junk", "other format"],
)
def test_bytes_that_are_no_array_are_refused(bad):
    record = ArrayRecord()
    record["w"] = bad
    with pytest.raises((TypeError, ValueError)):
        decode(bad)
    with pytest.raises(UnusableError, match="unreadable array 'w'"):
        Model({"w": np.zeros(2)}).examine(Update(ReceivedArrays(record)))


def test_a_model_goes_into_a_record_and_back():
    arrays = dict(MODELS["float32"])
    record = to_record(arrays)
    assert arrays == {}
    back = {name: decode(array) for name, array in record.items()}
    assert list(back) == list(MODELS["float32"])
    assert all(np.array_equal(back[name], array) for name, array in MODELS["float32"].items())
    received = ReceivedArrays(record)
    assert list(received) == list(back)
    assert len(received) == len(back)
    assert received["w"] is received["w"]


def test_an_array_that_holds_its_ndarray_returns_it():
    class Kept(Array):
        def numpy(self):
            return kept

    kept = np.arange(3.0)
    assert decode(Kept("float64", (3,), "numpy.ndarray", b"")) is kept


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_arrays_with_equal_headers_have_their_own_numbers(version):
    for values in (np.zeros((2, 3)), np.ones((2, 3)), np.asfortranarray(np.ones((2, 3))), np.ones((1,) * 30)):
        file = io.BytesIO()
        np.lib.format.write_array(file, values, version)
        decoded = decode(Array("float64", values.shape, "numpy.ndarray", file.getvalue()))
        np.testing.assert_array_equal(decoded, values, strict=True)


@pytest.mark.parametrize("length", [0, 6, 9, 40, 130])
def test_an_array_that_was_cut_off_is_refused(length):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ones(3))
    decode(Array("float64", (3,), "numpy.ndarray", file.getvalue()))  # the header is remembered
    with pytest.raises(ValueError, match=r"EOF|buffer"):
        decode(Array("float64", (3,), "numpy.ndarray", file.getvalue()[:length]))
