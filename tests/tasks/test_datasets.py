import gzip
import subprocess
import sys
import time

import numpy as np
import pytest

import tasks
from tasks import datasets
from tasks.federated_data import Dataset, FederatedData, federate

pytestmark = pytest.mark.usefixtures("nothing_known")


def images(shape, n=30, seed=0):
    return np.random.default_rng(seed).integers(256, size=(n, *shape), dtype=np.uint8)


def arrays(shape=(28, 28), num_classes=10):
    return {
        "x_train": images(shape),
        "y_train": (np.arange(30) % num_classes).astype(np.uint8),
        "x_test": images(shape, 12, seed=1),
        "y_test": (np.arange(12) % num_classes).astype(np.int64),
    }


def written(path, **content):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **content)
    return path


def check_same_samples(saved, original):
    for mine, theirs in zip(saved, original, strict=True):
        assert np.array_equal(mine.take(slice(None)).inputs, theirs.take(slice(None)).inputs)
        assert np.array_equal(mine.labels, theirs.labels)
    assert original.train.users is not None
    assert np.array_equal(saved.train.users, original.train.users)


def test_a_file_a_folder_and_the_environment_name_the_data(tmp_path, monkeypatch):
    content = arrays()
    file = written(tmp_path / "kmnist.npz", **content)
    monkeypatch.setenv(datasets.VARIABLE, str(tmp_path))
    for data_dir in (str(file), str(tmp_path), ""):
        halves = datasets.load("kmnist", data_dir)
        for half in ("train", "test"):
            samples = getattr(halves, half)
            everything = samples.take(slice(None))
            expected = content[f"x_{half}"].reshape(-1, 784)
            assert everything.inputs.dtype == np.float32
            assert np.array_equal(everything.inputs, expected.astype(np.float32) / np.float32(255))
            assert everything.labels.dtype == np.int64
            assert np.array_equal(everything.labels, content[f"y_{half}"])
            few = samples.take(np.array([3, 1]))
            assert np.array_equal(few.inputs, everything.inputs[[3, 1]])
            assert np.array_equal(few.labels, everything.labels[[3, 1]])


def test_a_data_set_is_read_once_a_process_and_stays_bytes(tmp_path):
    written(tmp_path / "mnist.npz", **arrays())
    halves = datasets.load("mnist", str(tmp_path))
    (tmp_path / "mnist.npz").unlink()
    assert datasets.load("mnist", str(tmp_path)) is halves
    assert isinstance(halves.train, datasets.InMemory)
    assert halves.train._pixels.dtype == np.uint8


def test_colours_may_come_first_last_or_flat(tmp_path):
    content = arrays((3, 32, 32))
    expected = content["x_train"].reshape(30, -1).astype(np.float32) / np.float32(255)
    forms = {
        "first": lambda x: x,
        "last": lambda x: x.transpose(0, 2, 3, 1),
        "flat": lambda x: x.reshape(len(x), -1),
    }
    for name, form in forms.items():
        turned = {key: form(value) if key.startswith("x") else value for key, value in content.items()}
        file = written(tmp_path / f"{name}.npz", **turned)
        assert np.array_equal(datasets.load("cifar10", str(file)).train.take(slice(None)).inputs, expected)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def test_files_in_mnists_own_format_are_read_compressed_or_not(tmp_path):
    content = arrays()
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for half, name in (("train", "train"), ("test", "t10k")):
        zipped = gzip.compress(idx(content[f"x_{half}"]))
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(zipped)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(content[f"y_{half}"].astype(np.uint8)))
    halves = datasets.load("fashion-mnist", str(tmp_path))
    assert np.array_equal(halves.train.labels, content["y_train"])
    expected = content["x_test"].reshape(12, -1).astype(np.float32) / np.float32(255)
    assert np.array_equal(halves.test.take(slice(None)).inputs, expected)

    datasets._load.cache_clear()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(zipped[:50])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz must be in the IDX format: "):
        datasets.load("fashion-mnist", str(tmp_path))
    (folder / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(ValueError, match=r"^data-dir: .*/fashion-mnist must hold"):
        datasets.load("fashion-mnist", str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": images((28, 27))}, r"images are uint8 \(30, 28, 27\): must be uint8 \(n, 1, 28, 28\)$"),
        ({"x_train": images((28, 28)) / 255.0}, r"images are float64 \(30, 28, 28\): must be uint8"),
        ({"y_train": np.full(30, 10)}, r"labels are int64 \(30,\): .* whole numbers between 0 and 9$"),
        ({"y_test": np.full(12, -1)}, r"labels are int64 \(12,\): must be \(12,\), at least one, whole"),
        ({"y_train": np.zeros(29, int)}, r"labels are int64 \(29,\): must be \(30,\)"),
        ({"y_train": np.zeros(30)}, r"labels are float64 \(30,\)"),
        ({"x_test": images((28, 28), 0), "y_test": np.zeros(0, int)}, r"labels are int64 \(0,\): .*at least"),
        ({"x_test": None}, r"mnist.npz must be an .npz with x_train, y_train, x_test and y_test: .*x_test"),
        ({"users_train": np.arange(4)}, r"users_train is \(4,\): must be \(30,\)$"),
        ({"users_test": np.arange(4)}, r"users_test is \(4,\): must be \(12,\)$"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, change, message):
    content = {key: value for key, value in (arrays() | change).items() if value is not None}
    written(tmp_path / "mnist.npz", **content)
    with pytest.raises(ValueError, match=f"^data-dir: .*{message}"):
        datasets.load("mnist", str(tmp_path))


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_damaged_file_is_refused(tmp_path, kept):
    path = written(tmp_path / "mnist.npz", **arrays())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(ValueError, match=r"^data-dir: .*mnist.npz must be an .npz with x_train"):
        datasets.load("mnist", str(tmp_path))


def test_a_place_without_the_data_is_refused(tmp_path):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=f"^data-dir = '{nowhere}': there is no such file or folder$"):
        datasets.load("mnist", nowhere)
    message = f"^data-dir = '{tmp_path}': holds neither mnist.npz nor a folder mnist$"
    with pytest.raises(ValueError, match=message):
        datasets.load("mnist", str(tmp_path))
    (tmp_path / "text.npz").write_text("not a zip file")
    with pytest.raises(ValueError, match=r"text.npz must be an .npz with x_train"):
        datasets.load("mnist", str(tmp_path / "text.npz"))
    with pytest.raises(ValueError, match=r"^data set = 'letters': must be one of digits, mnist, "):
        datasets.load("letters")


def test_mnist_is_not_mistaken_for_a_variant(tmp_path):
    """All three have the same shapes, so nothing else would notice."""
    file = written(tmp_path / "mnist.npz", **arrays())
    with pytest.raises(ValueError, match=f"^data-dir = '{file}': holds mnist, not kmnist; name its folder"):
        datasets.load("kmnist", str(file))


def test_without_flower_datasets_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    message = (
        r"^data set = 'cifar10' needs flwr-datasets: pip install 'cohort-app\[data\]'; "
        r"or put cifar10.npz into a folder that the setting data-dir or the variable COHORT_DATA names$"
    )
    with pytest.raises(ModuleNotFoundError, match=message) as missing:
        datasets.load("cifar10")
    assert missing.value.name == "flwr-datasets"


def test_without_scikit_learn_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr(datasets.digits, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"^task = 'digits' needs scikit-learn: pip") as missing:
        datasets.load("digits")
    assert missing.value.name == "scikit-learn"


# Tables as the Hugging Face Hub has them, made here, and read through Flower Datasets.


def hub_table(name, n, seed):
    """Return a small table with a data set's columns, and its images (n, height, width, 3 or 1)."""
    theirs, pil = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    description = datasets.DESCRIPTIONS[name]
    channels, height, width = description.shape
    size = (218, 178) if name == "celeba" else (height, width)
    pixels = images((*size, channels), n, seed)
    labels = np.arange(n) % description.num_classes
    mode = theirs.Image()
    columns = {
        "mnist": {"image": mode, "label": theirs.ClassLabel(num_classes=10)},
        "cifar10": {"img": mode, "label": theirs.ClassLabel(num_classes=10)},
        "femnist": {
            "image": mode,
            "writer_id": theirs.Value("string"),
            "hsf_id": theirs.Value("int64"),
            "character": theirs.ClassLabel(num_classes=62),
        },
        "celeba": {"image": mode, "celeb_id": theirs.Value("int64"), "Smiling": theirs.Value("bool")},
    }[name]
    values = {
        "label": labels.tolist(),
        "character": labels.tolist(),
        "Smiling": (labels == 1).tolist(),
        "hsf_id": [0] * n,
        "writer_id": [f"f{i % 7:04}_14" for i in range(n)],
        "celeb_id": [i % 5 for i in range(n)],
    }
    pictures = [pil.fromarray(each if channels == 3 else each[:, :, 0]) for each in pixels]
    table = {column: pictures if kind is mode else values[column] for column, kind in columns.items()}
    return theirs.Dataset.from_dict(table, features=theirs.Features(columns)), pixels


def hub_folder(folder, name, halves=("train", "test")):
    """Write a copy of a data set's repository; return the training images."""
    (folder / name).mkdir(parents=True)
    for half in reversed(halves):
        table, pixels = hub_table(name, 40 if half == "train" else 12, seed=len(half))
        table.to_parquet(str(folder / name / f"{half}-00000-of-00001.parquet"))
    return pixels


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_flower_datasets_tables_become_the_same_samples(name, tmp_path, monkeypatch):
    pytest.importorskip("flwr_datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    pixels = hub_folder(tmp_path, name)
    halves = datasets.load(name, str(tmp_path))
    assert halves.train.labels.tolist() == [i % 10 for i in range(40)]
    assert len(halves.test.labels) == 12
    got = halves.train.take(np.array([7, 2, 39]))
    expected = pixels.transpose(0, 3, 1, 2).reshape(40, -1)[[7, 2, 39]]
    assert np.array_equal(got.inputs, expected.astype(np.float32) / np.float32(255))
    assert got.labels.tolist() == [7, 2, 9]


def test_femnist_is_held_out_in_part_and_knows_its_writers(tmp_path, monkeypatch):
    pytest.importorskip("flwr_datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    pixels = hub_folder(tmp_path, "femnist", ("train",))
    train, test = datasets.load("femnist", str(tmp_path))
    assert (len(train.labels), len(test.labels)) == (36, 4)
    # Labels are 0, 1, 2, ... in the table, so they identify the rows.
    assert sorted([*train.labels, *test.labels]) == list(range(40))
    assert train.users is not None
    assert train.users.tolist() == [f"f{i % 7:04}_14" for i in train.labels]
    for half in (train, test):
        expected = pixels.reshape(40, -1)[half.labels].astype(np.float32) / np.float32(255)
        assert np.array_equal(half.take(slice(None)).inputs, expected)


def test_celeba_is_scaled_and_asks_who_smiles(tmp_path, monkeypatch):
    pytest.importorskip("flwr_datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    hub_folder(tmp_path, "celeba", ("train", "valid", "test"))
    train, _ = datasets.load("celeba", str(tmp_path))
    got = train.take(np.array([1, 4]))
    assert got.inputs.shape == (2, 3 * 84 * 84)
    assert 0.3 < got.inputs.mean() < 0.7
    assert got.labels.tolist() == [1, 0]
    assert train.users is not None
    assert train.users.tolist() == [i % 5 for i in range(40)]


def test_a_table_without_the_columns_is_refused():
    table, _ = hub_table("mnist", 5, 0)
    with pytest.raises(ValueError, match=r"^uoft-cs/cifar10 has no column img$"):
        datasets.FromHub(table, datasets.DESCRIPTIONS["cifar10"])


def test_a_failed_download_names_the_alternative(tmp_path, monkeypatch):
    pytest.importorskip("flwr_datasets")
    (tmp_path / "mnist").mkdir()
    with pytest.raises(ValueError, match=r"^data-dir = '.*/mnist': mnist cannot be read from .*put"):
        datasets.load("mnist", str(tmp_path))


def test_a_saved_data_set_reads_the_same(tmp_path, monkeypatch):
    pytest.importorskip("flwr_datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    hub_folder(tmp_path, "femnist", ("train",))
    here = datasets.DESCRIPTIONS["femnist"]
    assert here.hub is not None
    moved = here.hub._replace(repository=str(tmp_path / "femnist"))
    monkeypatch.setitem(datasets.DESCRIPTIONS, "femnist", here._replace(hub=moved))
    datasets.save("femnist", tmp_path / "femnist.npz")
    saved = datasets.load("femnist", str(tmp_path / "femnist.npz"))
    original = datasets._from_hub("femnist", datasets.DESCRIPTIONS["femnist"])
    check_same_samples(saved, original)


def test_the_saving_command_names_wrong_arguments():
    command = [sys.executable, "-m", "tasks.datasets"]
    for arguments, message in (
        ([], "usage: python -m tasks.datasets NAME FILE.npz [SOURCE]\n"),
        (["digits", "x.npz"], "data set = 'digits': must be one of mnist, fashion-mnist, "),
        (["mnist", "nowhere/x.npz"], "file = 'nowhere/x.npz': there is no folder nowhere\n"),
    ):
        run = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert run.returncode == 1
        assert run.stderr.startswith(message)


# A federation's samples in three arrays.

DATA = Dataset(np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12))


def test_the_arrays_hold_client_after_client():
    parts = [np.array([7, 2]), np.array([], dtype=np.int64), np.array([0, 11, 5])]
    data = federate(DATA, parts, groups=np.array([1, 0, 1]))
    assert data.num_clients == 3
    assert data.offsets.tolist() == [0, 2, 2, 5]
    assert data.sizes().tolist() == [2, 0, 3]
    assert [data.client(m).labels.tolist() for m in range(3)] == [[7, 2], [], [0, 11, 5]]
    assert np.array_equal(data.client(2).inputs, DATA.inputs[[0, 11, 5]])
    assert data.groups is not None
    assert data.groups.tolist() == [1, 0, 1]
    assert (data.inputs.dtype, data.labels.dtype, data.offsets.dtype) == (np.float32, np.int64, np.int64)
    assert data.client(2).inputs.base is data.inputs  # a view
    data.inputs[:] = 0
    assert DATA.inputs[7, 0] == 14  # the source is not changed


def test_there_is_no_client_beyond_the_last():
    data = federate(DATA, [np.array([1]), np.array([2])])
    assert data.groups is None
    for m in (-1, 2):
        with pytest.raises(IndexError, match=f"^client = {m}: must be between 0 and 1$"):
            data.client(m)


def test_a_federation_without_clients_is_refused():
    with pytest.raises(ValueError, match=r"^parts = \[\]: there must be at least one client$"):
        federate(DATA, [])
    with pytest.raises(ValueError, match=r"^groups of shape \(3,\): must be \(2,\), one per client$"):
        federate(DATA, [np.array([1]), np.array([2])], groups=np.zeros(3))


@pytest.mark.parametrize("partition", ["skewed", "dirichlet:0.5", "groups:5"])
def test_a_task_gives_each_client_what_the_arrays_hold(partition):
    task = tasks.create("digits", partition=partition)
    data = task.federated_data(12, 3)
    assert isinstance(data, FederatedData)
    assert data.sizes().sum() == 1437
    for m in range(12):
        mine, there = task.client_data(m, 12, 3), data.client(m)
        assert np.array_equal(mine.inputs, there.inputs)
        assert np.array_equal(mine.labels, there.labels)
        group = task.client_group(m, 12, 3)
        assert group is None if data.groups is None else group == data.groups[m]


def test_a_thousand_clients_are_read_in_a_moment(tmp_path):
    """The file is read once, the partition is computed once, and a client copies only its own samples."""
    random = np.random.default_rng(0)
    content = arrays() | {
        "x_train": random.integers(256, size=(20_000, 784), dtype=np.uint8),
        "y_train": random.integers(10, size=20_000),
    }
    written(tmp_path / "mnist.npz", **content)
    task = tasks.create("mnist", partition="dirichlet:0.3", data_dir=str(tmp_path))
    task.client_data(0, 1000, 1)
    began = time.process_time()
    assert sum(len(task.client_data(m, 1000, 1)) for m in range(1000)) == 20_000
    assert time.process_time() - began < 2.0
