"""Data sets by name (MNIST, CIFAR-10, CelebA, ...), read from files on this machine or by Flower Datasets.

The setting ``data-dir`` or, if it is empty, the environment variable COHORT_DATA is the path of one of these:

- an ``.npz`` file with x_train (n, ...) uint8, y_train (n,), x_test, y_test and, for the partition
  ``natural``, users_train (n,), the user who made each sample; users_test is optional; the inputs of Sent140
  are float32;
- a folder that contains such a file as ``NAME.npz``;
- a folder that contains a folder ``NAME/``. This folder holds the files of MNIST's own format
  (``train-images-idx3-ubyte.gz``, ...), or a copy of the data set's repository on the Hugging Face Hub. For
  Shakespeare, it may hold LEAF's JSON files instead (``train/*.json`` and ``test/*.json``, see `leaf`). For
  Sent140, it must hold these JSON files and a file of GloVe's word vectors, ``*.200d.txt``.

If the setting and the variable are both empty, Flower Datasets downloads the data set or finds it in its
cache. The command `python -m tasks.datasets NAME FILE [SOURCE]` writes an .npz file of the form above, from
the file or folder SOURCE, or else from a download. Such a file serves machines without a network, and is read
much faster. The data set "digits" needs no file, folder or download. No download holds the users of Sent140,
so this data set needs the output of LEAF's scripts.
"""

import gzip
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from . import digits, leaf
from .federated_data import Dataset

VARIABLE = "COHORT_DATA"
_DAMAGED = (EOFError, BadZipFile, zlib.error)  # what damaged compressed files raise, besides OSError


class Hub(NamedTuple):
    """A data set on the Hugging Face Hub, and its columns."""

    repository: str
    image: str = "image"
    label: str = "label"
    user: str | None = None  # the column of the user who made the sample
    held_out: float = 0.0  # share of samples held out as the test set; 0: the data set has a test set


class Description(NamedTuple):
    """The properties of a data set that are known before it is read."""

    # Of an image: channels, height, width. Of a text: its number of characters, or the length of its vector.
    shape: tuple[int, ...]
    num_classes: int
    hub: Hub | None = None  # None: the Hub does not have the data set in a usable form
    # How samples are stored. Pixels: as bytes, to be divided by 255. Characters: as their numbers, in bytes.
    # Vectors: as float32.
    encoding: Literal["pixels", "characters", "vectors"] = "pixels"

    @property
    def num_features(self) -> int:
        """Numbers per sample, in the order channels, rows, columns."""
        return int(np.prod(self.shape))


DESCRIPTIONS = {
    "digits": Description((1, 8, 8), 10),
    "mnist": Description((1, 28, 28), 10, Hub("ylecun/mnist")),
    "fashion-mnist": Description((1, 28, 28), 10, Hub("zalando-datasets/fashion_mnist")),
    "kmnist": Description((1, 28, 28), 10, Hub("tanganke/kmnist")),
    # The ten digits of EMNIST (Cohen et al. 2017), in the split that is as large as MNIST.
    "emnist": Description((1, 28, 28), 10, Hub("tanganke/emnist_mnist")),
    "cifar10": Description((3, 32, 32), 10, Hub("uoft-cs/cifar10", image="img")),
    "cifar100": Description((3, 32, 32), 100, Hub("uoft-cs/cifar100", image="img", label="fine_label")),
    # The following data sets are from LEAF (Caldas et al. 2018). FEMNIST: the classes are 62 characters, a
    # user is a writer, a tenth of the samples are held out. CelebA: the class is whether a celebrity smiles,
    # a user is a celebrity, images are scaled to 84 x 84.
    "femnist": Description(
        (1, 28, 28), 62, Hub("flwrlabs/femnist", label="character", user="writer_id", held_out=0.1)
    ),
    "celeba": Description((3, 84, 84), 2, Hub("flwrlabs/celeba", label="Smiling", user="celeb_id")),
    # Shakespeare: the class is the character that follows a text of 80 characters, a user is a role of a
    # play. Sent140: the class is whether a tweet is positive, a user is an account, a sample is the mean of
    # the vectors of the tweet's words.
    "shakespeare": Description(
        (leaf.LENGTH,),
        len(leaf.CHARACTERS),
        Hub("flwrlabs/shakespeare", image="x", label="y", user="character_id", held_out=0.1),
        "characters",
    ),
    "sent140": Description((leaf.VECTOR,), 2, None, "vectors"),
}


class Samples(ABC):
    """One half of a data set, train or test. Labels are in memory; inputs are read on demand."""

    labels: NDArray[np.int64]  # (n,)
    users: NDArray[Any] | None = None  # (n,) the user who made each sample, if known
    scale = 255  # the number by which bytes are divided: 255 for pixels, 1 for characters

    @abstractmethod
    def stored(self, rows: NDArray[np.int64] | slice) -> NDArray[Any]:
        """Return the inputs in these rows as a file stores them: pixels as bytes."""

    def take(self, rows: NDArray[np.int64] | slice) -> Dataset:
        """Return the samples in these rows: inputs (len(rows), features), pixels in [0, 1]."""
        inputs = self.stored(rows)
        if inputs.dtype != np.float32:
            inputs = np.divide(inputs, np.float32(self.scale), dtype=np.float32)
        return Dataset(inputs, self.labels[rows])


class Halves(NamedTuple):
    """The two halves of a data set."""

    train: Samples
    test: Samples


class InMemory(Samples):
    """Samples with all inputs (n, features) in memory: pixels or characters as bytes, or float32."""

    def __init__(
        self,
        pixels: NDArray[np.uint8] | NDArray[np.float32],
        labels: NDArray[np.int64],
        users: NDArray[Any] | None = None,
        scale: int = 255,
    ) -> None:
        self._pixels, self.labels, self.users, self.scale = pixels, labels, users, scale

    def stored(self, rows: NDArray[np.int64] | slice) -> NDArray[Any]:
        return self._pixels[rows]


class FromHub(Samples):
    """Samples of a Hugging Face `datasets.Dataset`. Images are decoded on demand."""

    def __init__(self, table: Any, description: Description, rows: NDArray[np.int64] | None = None) -> None:
        hub = description.hub
        assert hub is not None
        missing = {hub.image, hub.label, hub.user or hub.label} - set(table.column_names)
        if missing:
            raise ValueError(f"{hub.repository} has no column {', '.join(sorted(missing))}")
        self._rows = np.arange(len(table)) if rows is None else rows
        self._images = table.select_columns([hub.image])
        self._description = description
        plain = table.select_columns([name for name in (hub.label, hub.user) if name]).with_format("numpy")
        columns = plain[:]
        self.labels = np.asarray(columns[hub.label])[self._rows].astype(np.int64)
        if hub.user:
            self.users = np.asarray(columns[hub.user])[self._rows]

    def stored(self, rows: NDArray[np.int64] | slice) -> NDArray[np.uint8]:
        channels, height, width = self._description.shape
        chosen = self._rows[rows]
        pixels = np.empty((len(chosen), channels, height, width), np.uint8)
        (column,) = self._images.column_names
        # Images are read 256 at a time. Reading them one by one takes seven times as long. All decoded images
        # of CelebA together do not fit into memory.
        for start in range(0, len(chosen), 256):
            images = self._images[chosen[start : start + 256].tolist()][column]
            for i, image in enumerate(images, start):
                found = image.convert("L" if channels == 1 else "RGB")
                if found.size != (width, height):
                    found = found.resize((width, height))
                pixels[i] = np.asarray(found).reshape(height, width, channels).transpose(2, 0, 1)
        return pixels.reshape(len(chosen), -1)


def load(name: str, data_dir: str = "") -> Halves:
    """Return a data set of `DESCRIPTIONS`, the same objects on a second call.

    ``data_dir`` is the folder or file of the data, see the docstring of this module; "" means the environment
    variable. Raises ValueError if there is no data set of this name, or the file or folder does not hold it,
    and ModuleNotFoundError if a package is missing; the message names the extra that installs it.
    """
    if name not in DESCRIPTIONS:
        raise ValueError(f"data set = {name!r}: must be one of {', '.join(DESCRIPTIONS)}")
    return _load(name, data_dir or os.environ.get(VARIABLE, ""))


def files(name: str, data_dir: str = "") -> list[Path]:
    """Return the files from which `load` reads a data set; none if it needs no file or is downloaded."""
    where = data_dir or os.environ.get(VARIABLE, "")
    if name == "digits" or not where:
        return []
    path = Path(where).expanduser()
    if not path.is_dir():
        return [path]
    if (path / f"{name}.npz").exists():
        return [path / f"{name}.npz"]
    return sorted(each for each in (path / name).rglob("*") if each.is_file())


@lru_cache(maxsize=4)
def _load(name: str, where: str) -> Halves:
    description = DESCRIPTIONS[name]
    if name == "digits":
        return Halves(*(InMemory(half.inputs, half.labels) for half in digits.load()))
    if not where:
        return _from_hub(name, description)
    path = Path(where).expanduser()
    if path.is_dir():
        if (path / f"{name}.npz").exists():
            return _from_npz(path / f"{name}.npz", description)
        if not (path / name).is_dir():
            raise ValueError(f"data-dir = {where!r}: holds neither {name}.npz nor a folder {name}")
        if list((path / name).glob("*-ubyte*")):
            return _from_idx(path / name, description)
        if description.encoding == "vectors" or (path / name / "train").is_dir():
            return _from_leaf(path / name, description)
        return _from_hub(name, description, path / name)
    if not path.exists():
        raise ValueError(f"data-dir = {where!r}: there is no such file or folder")
    if path.stem != name and path.stem in DESCRIPTIONS:  # MNIST and its variants have equal shapes
        raise ValueError(f"data-dir = {where!r}: holds {path.stem}, not {name}; name its folder instead")
    return _from_npz(path, description)


def _from_npz(path: Path, description: Description) -> Halves:
    try:
        with np.load(path, allow_pickle=False) as arrays:  # a pickle could run code
            halves = [(arrays[f"x_{half}"], arrays[f"y_{half}"]) for half in ("train", "test")]
            users = [arrays.get(f"users_{half}") for half in ("train", "test")]
    except (*_DAMAGED, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"data-dir: {path} must be an .npz with x_train, y_train, x_test and y_test: {error}"
        ) from error
    both = Halves(*(_checked(*half, path, description) for half in halves))
    for name, half, names in zip(("train", "test"), both, users, strict=True):
        if names is not None and names.shape != half.labels.shape:
            raise ValueError(f"data-dir: {path}: users_{name} is {names.shape}: must be {half.labels.shape}")
        half.users = names
    return both


def _from_idx(folder: Path, description: Description) -> Halves:
    """Read four files of the form in which MNIST is published; each file may be compressed by gzip."""
    return Halves(
        *(
            _checked(
                _idx(folder, f"{half}-images-idx3-ubyte"),
                _idx(folder, f"{half}-labels-idx1-ubyte"),
                folder,
                description,
            )
            for half in ("train", "t10k")
        )
    )


def _idx(folder: Path, name: str) -> NDArray[np.uint8]:
    """Read one array of MNIST's own format: two zero bytes, the type, the rank, the lengths, the numbers."""
    path = next((p for p in (folder / f"{name}.gz", folder / name) if p.exists()), None)
    if path is None:
        raise ValueError(f"data-dir: {folder} must hold {name}.gz")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if content[:3] != b"\0\0\x08":
            raise ValueError("not an array of bytes")
        start = 4 + 4 * content[3]
        shape = np.frombuffer(content[4:start], ">u4")
        return np.frombuffer(content, np.uint8, offset=start).reshape(tuple(shape.tolist()))
    except (*_DAMAGED, OSError, ValueError, IndexError) as error:
        raise ValueError(f"data-dir: {path} must be in the IDX format: {error}") from error


def _from_leaf(folder: Path, description: Description) -> Halves:
    """Read LEAF's JSON files, see `leaf`."""
    train, test = folder / "train", folder / "test"
    if description.encoding == "characters":
        halves = leaf.shakespeare(train, test)
    elif description.encoding == "vectors":
        found = sorted(folder.glob(f"*.{leaf.VECTOR}d.txt"))
        if len(found) != 1:
            raise ValueError(
                f"data-dir: {folder} holds {len(found)} files *.{leaf.VECTOR}d.txt: must hold one, GloVe's "
                "word vectors (glove.6B.zip or glove.twitter.27B.zip from nlp.stanford.edu/projects/glove)"
            )
        halves = leaf.sent140(train, test, found[0])
    else:
        raise ValueError(f"data-dir: {folder} must not have a folder train: LEAF's JSON files are for texts")
    scale = 1  # characters stay numbers
    return Halves(*(InMemory(half.inputs, half.labels, half.users, scale) for half in halves))


def _checked(images: NDArray[Any], labels: NDArray[Any], path: Path, description: Description) -> InMemory:
    """Return the arrays of a file as samples. The colour channels may come last, as in PIL's images."""
    layouts = [description.shape, (description.num_features,)]
    channels = 1
    if description.encoding == "pixels":
        channels, height, width = description.shape
        layouts.append((height, width, channels))
        if channels == 1:
            layouts.append((height, width))
    kind = np.float32 if description.encoding == "vectors" else np.uint8
    if images.dtype != kind or images.shape[1:] not in layouts:
        what = "images" if description.encoding == "pixels" else description.encoding
        raise ValueError(
            f"data-dir: {path}: {what} are {images.dtype} {images.shape}: "
            f"must be {np.dtype(kind)} (n, {', '.join(map(str, description.shape))})"
        )
    largest = description.num_classes - 1
    if description.encoding == "characters" and images.max(initial=0) > largest:
        raise ValueError(
            f"data-dir: {path}: characters go up to {images.max()}: must be between 0 and {largest}"
        )
    if description.encoding == "vectors" and not np.isfinite(images).all():
        raise ValueError(f"data-dir: {path}: vectors hold NaN or infinities: must be finite numbers")
    if (
        labels.shape != images.shape[:1]
        or not len(labels)
        or labels.dtype.kind not in "iu"
        or not 0 <= labels.min() <= labels.max() <= largest
    ):
        raise ValueError(
            f"data-dir: {path}: labels are {labels.dtype} {labels.shape}: must be ({len(images)},), "
            f"at least one, whole numbers between 0 and {largest}"
        )
    if channels > 1 and images.shape[1:] == (height, width, channels):
        images = images.transpose(0, 3, 1, 2)
    scale = 255 if description.encoding == "pixels" else 1
    return InMemory(images.reshape(len(images), -1), labels.astype(np.int64), scale=scale)


def _from_hub(name: str, description: Description, folder: Path | None = None) -> Halves:
    hub = description.hub
    if hub is None:
        raise ValueError(
            f"data-dir = '': {name} cannot be downloaded: put {name}.npz or LEAF's files {name}/train/*.json "
            f"and {name}/test/*.json into a folder that data-dir or {VARIABLE} names"
        )
    try:
        from flwr_datasets import FederatedDataset
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"data set = {name!r} needs flwr-datasets: pip install 'cohort-app[data]'; "
            f"or put {name}.npz into a folder that the setting data-dir or the variable {VARIABLE} names",
            name="flwr-datasets",
        ) from error
    source: Callable[[str], Any] = FederatedDataset(
        dataset=str(folder or hub.repository), partitioners={}, shuffle=False
    ).load_split
    try:
        train = source("train")
        test = None if hub.held_out else source("test")
    except Exception as error:  # any failure of the network, the cache or a library
        raise ValueError(
            f"data-dir = {str(folder or '')!r}: {name} cannot be read from {folder or hub.repository}: "
            f"{error}; without a network, put {name}.npz into a folder that data-dir or {VARIABLE} names"
        ) from error
    read = _texts_of_hub if description.encoding == "characters" else FromHub
    if test is not None:
        return Halves(read(train, description), read(test, description))
    order = np.random.default_rng(0).permutation(len(train))  # the same in every process
    num_test = round(hub.held_out * len(train))
    return Halves(
        read(train, description, np.sort(order[num_test:])),
        read(train, description, np.sort(order[:num_test])),
    )


def _texts_of_hub(table: Any, description: Description, rows: NDArray[np.int64] | None = None) -> InMemory:
    """Return the texts of a Hugging Face `datasets.Dataset` as the numbers of their characters."""
    hub = description.hub
    assert hub is not None
    assert hub.user is not None
    names = (hub.image, hub.label, hub.user)
    if missing := {*names} - {*table.column_names}:
        raise ValueError(f"{hub.repository} has no column {', '.join(sorted(missing))}")
    chosen = table if rows is None else table.select(rows)
    inputs = np.empty((len(chosen), leaf.LENGTH), np.uint8)
    labels, users = np.empty(len(chosen), np.int64), []
    for start in range(0, len(chosen), 10_000):  # not all four million texts at once
        batch = chosen[start : start + 10_000]
        for row, (text, label) in enumerate(zip(batch[hub.image], batch[hub.label], strict=True), start):
            try:
                inputs[row], labels[row] = leaf.numbers_of(text), leaf.number_of(label)
            except ValueError as error:
                raise ValueError(f"{hub.repository}, row {row}: {text!r}, {label!r}: {error}") from None
        users += batch[hub.user]
    return InMemory(inputs, labels, np.array(users), scale=1)


def save(name: str, path: Path, source: str = "") -> None:
    """Write a data set to one .npz file, pixels and characters as bytes; "digits" is refused.

    It is read from ``source``, as in the setting ``data-dir``, or downloaded if this is "". Errors are those
    of `load`.
    """
    known = [each for each in DESCRIPTIONS if each != "digits"]
    if name not in known:
        raise ValueError(f"data set = {name!r}: must be one of {', '.join(known)}")
    if not path.parent.is_dir():  # checked before the download, which may take an hour
        raise ValueError(f"file = {str(path)!r}: there is no folder {path.parent}")
    arrays: dict[str, NDArray[Any]] = {}
    halves = load(name, source) if source else _from_hub(name, DESCRIPTIONS[name])
    for half, samples in halves._asdict().items():
        arrays[f"x_{half}"] = samples.stored(slice(None)).reshape(-1, *DESCRIPTIONS[name].shape)
        arrays[f"y_{half}"] = samples.labels
        if samples.users is not None:
            arrays[f"users_{half}"] = samples.users
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    try:
        save(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:4])
    except IndexError:
        sys.exit("usage: python -m tasks.datasets NAME FILE.npz [SOURCE]")
    except (ValueError, ModuleNotFoundError) as problem:
        sys.exit(str(problem))
