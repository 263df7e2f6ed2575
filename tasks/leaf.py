"""Reads texts in LEAF's form (Caldas et al. 2018): JSON files with the samples of each user.

A half of a data set (train or test) is a folder of ``*.json`` files, in which no user is twice. LEAF's
scripts write the two halves into the folders ``train`` and ``test``; with their option ``-t sample``, both
halves have the same users. Each file holds an object with these entries::

    users         the names of the users in this file
    num_samples   optional: the number of samples of each of these users
    user_data     by user: {"x": [one entry per sample], "y": [one entry per sample]}
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters for Shakespeare. The number of a character is its position here."""
LENGTH = 80
"""The number of characters in a text of Shakespeare. The character after the text is predicted."""
VECTOR = 200
"""Numbers in a word's vector, for Sent140."""
_TEXT = 4  # the position of the text in an entry of Sent140: id, date, query, user, text, ...
_WORD = re.compile(r"[\w']+|[.,!?;]")
_LABELS = {0: 0, 1: 1, 4: 1}  # Sentiment140's own files have 4 for "positive"

# Entry i is the number of the character with the code point i. Code points above 255 use the entry 255. A
# character that is not in `CHARACTERS`, such as that with the code point 255, has the number of the blank.
_NUMBERS = np.full(256, CHARACTERS.index(" "), np.uint8)
_NUMBERS[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))


class Encoded(NamedTuple):
    """The samples of a half as numbers."""

    inputs: Any  # (n, features)
    labels: NDArray[np.int64]  # (n,)
    users: NDArray[np.str_]  # (n,)


def shakespeare(train: Path, test: Path) -> list[Encoded]:
    """Read the two halves of Shakespeare: x is a text of 80 characters, y the character that follows.

    The inputs are (n, 80) uint8: the numbers of the characters in `CHARACTERS`; another character counts as a
    blank. Raises ValueError if a file has another form; the message names the file, the user and the entry.
    """
    halves = [_read(folder, numbers_of, number_of) for folder in (train, test)]
    return [half._replace(inputs=np.stack(half.inputs)) for half in halves]


def sent140(train: Path, test: Path, vectors: Path) -> list[Encoded]:
    """Read the two halves of Sent140: x is a tweet; y is 0 for a negative one, and 1 or 4 for a positive one.

    LEAF writes 1, and Sentiment140's own files have 4. An entry of x is the text of the tweet, or as in
    LEAF's files a list whose fifth entry is the text. ``vectors`` is a file of word vectors in GloVe's form:
    in each line a word and 200 numbers. The inputs are (n, 200) float32: the mean of the vectors of the
    tweet's words, as in the Power-of-Choice paper (appendix F). Words are in lower case; ``. , ! ? ;`` count
    as words. Words without a vector are left out; a tweet without any is all 0. Raises ValueError as
    `shakespeare` does.
    """
    halves = [_read(folder, _words, _sentiment) for folder in (train, test)]
    known = _vectors(vectors, {word for half in halves for words in half.inputs for word in words})
    return [half._replace(inputs=_means(half.inputs, known)) for half in halves]


def numbers_of(text: Any) -> NDArray[np.uint8]:
    """Return the numbers of a text's 80 characters; raise a ValueError if it is no such text."""
    if not isinstance(text, str) or len(text) != LENGTH:
        raise ValueError(f"must be a text of {LENGTH} characters")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return _NUMBERS[np.minimum(points, 255)]


def number_of(character: Any) -> int:
    """Return the number of a character; raise a ValueError if it is not a single character."""
    if not isinstance(character, str) or len(character) != 1:
        raise ValueError("must be one character")
    return int(_NUMBERS[min(ord(character), 255)])


def _words(entry: Any) -> list[str]:
    text = entry[_TEXT] if isinstance(entry, list) and len(entry) > _TEXT else entry
    if not isinstance(text, str):
        raise ValueError("must be a text, or a list whose fifth entry is a text")
    return _WORD.findall(text.lower())


def _sentiment(label: Any) -> int:
    if isinstance(label, bool) or label not in _LABELS:
        raise ValueError("must be 0 or 1 (or 4, which counts as 1)")
    return _LABELS[label]


def _read(folder: Path, read_x: Callable[[Any], Any], read_y: Callable[[Any], int]) -> Encoded:
    """Return the checked samples of a half; the inputs are a list of what ``read_x`` returns."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"data-dir: {folder} must hold LEAF's JSON files; there is no *.json")
    inputs: list[Any] = []
    labels: list[int] = []
    users: list[str] = []
    seen: dict[str, Path] = {}
    for file in files:
        for user, entries in _users(file):
            if user in seen:
                raise ValueError(
                    f"data-dir: {file}: user {user!r}: must be in one file, and is in {seen[user]}"
                )
            seen[user] = file
            for name, read, values in (("x", read_x, inputs), ("y", read_y, labels)):
                for number, value in enumerate(entries[name]):
                    try:
                        values.append(read(value))
                    except (ValueError, TypeError) as error:
                        shown = f"user_data[{user!r}][{name!r}][{number}] = {_short(value)}"
                        raise ValueError(f"data-dir: {file}: {shown}: {error}") from None
            users.extend([user] * len(entries["x"]))
    if not labels:
        raise ValueError(f"data-dir: {folder}: holds no sample: must hold at least one")
    return Encoded(inputs, np.array(labels, dtype=np.int64), np.array(users))


def _users(file: Path) -> Iterable[tuple[str, dict[str, list[Any]]]]:
    """Yield each user of a file with the user's checked lists x and y."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"data-dir: {file}: must be a JSON file: {error}") from error
    users = content.get("users") if isinstance(content, dict) else None
    data = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(users, list) or not isinstance(data, dict):
        raise ValueError(f"data-dir: {file}: must be an object with a list 'users' and an object 'user_data'")
    stated = content.get("num_samples")
    if stated is not None and (not isinstance(stated, list) or len(stated) != len(users)):
        raise ValueError(f"data-dir: {file}: num_samples = {_short(stated)}: must be {len(users)} numbers")
    for place, user in enumerate(users):
        entries = data.get(user) if isinstance(user, str) else None
        if not isinstance(entries, dict) or not all(isinstance(entries.get(name), list) for name in "xy"):
            raise ValueError(
                f"data-dir: {file}: users[{place}] = {_short(user)}: must be a text with an entry in "
                "user_data that has the lists x and y"
            )
        lengths = len(entries["x"]), len(entries["y"])
        if lengths[0] != lengths[1]:
            raise ValueError(
                f"data-dir: {file}: user_data[{user!r}]: x has {lengths[0]} entries and y {lengths[1]}: must "
                "be equally many"
            )
        if stated is not None and stated[place] != lengths[0]:
            raise ValueError(
                f"data-dir: {file}: num_samples[{place}] = {_short(stated[place])}: must be {lengths[0]}, "
                f"as user {user!r} has"
            )
        yield user, entries


def _vectors(file: Path, wanted: set[str]) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of the wanted words, as far as the file has them."""
    found = {}
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            word, _, rest = line.rstrip("\n").partition(" ")
            if word not in wanted:
                continue
            try:
                vector = np.array(rest.split(" "), dtype=np.float32)
                if vector.shape != (VECTOR,) or not np.isfinite(vector).all():
                    raise ValueError
            except ValueError:
                raise ValueError(
                    f"data-dir: {file}, line {number}: {_short(line)}: must be a word and {VECTOR} numbers"
                ) from None
            found[word] = vector
    if not found:
        raise ValueError(
            f"data-dir: {file}: has no vector for any word of the tweets: must be GloVe's text form"
        )
    return found


def _means(tweets: Sequence[list[str]], known: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    means = np.zeros((len(tweets), VECTOR), np.float32)
    for mean, words in zip(means, tweets, strict=True):
        if vectors := [known[word] for word in words if word in known]:
            mean[:] = np.mean(vectors, axis=0)
    return means


def _short(value: Any) -> str:
    """Return a value as text, shortened: the files come from elsewhere, and an entry may be long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
