"""Texts in LEAF's JSON form: the files, the tasks Shakespeare and Sent140, and refused files."""

import json

import numpy as np
import pytest

import tasks
from tasks import datasets, leaf

from .test_datasets import check_same_samples

PLAY = "To be, or not to be: that is the question: whether 'tis nobler in the mind to suffer " * 3
VECTORS = {"good": 1.0, "bad": -1.0, "day": 0.25, "!": 0.5}
pytestmark = pytest.mark.usefixtures("nothing_known")


def lines(first, count):
    """Return some samples of Shakespeare, from a position of the play on."""
    starts = range(first, first + count)
    return {"x": [PLAY[i : i + 80] for i in starts], "y": [PLAY[i + 80] for i in starts]}


def tweet(text):
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "somebody", text, "training"]


def written(folder, half, files):
    """Write a half of a data set, a file for each dict of users."""
    (folder / half).mkdir(parents=True)
    for number, users in enumerate(files):
        sizes = [len(each["x"]) for each in users.values()]
        content = {"users": list(users), "num_samples": sizes, "user_data": users}
        (folder / half / f"all_data_{number}.json").write_text(json.dumps(content))


def shakespeare(folder):
    users = {"HAMLET": lines(0, 9), "HORATIO": lines(20, 4)}
    written(folder / "shakespeare", "train", [users, {"OPHELIA": lines(40, 6)}])
    written(folder / "shakespeare", "test", [{"HAMLET": lines(60, 3)}])
    return folder


def glove(file):
    file.write_text("".join(f"{word} {' '.join([str(value)] * 200)}\n" for word, value in VECTORS.items()))


def sent140(folder):
    users = {
        "ann": {"x": [tweet("Good day!"), tweet("a BAD day"), tweet("good, good")], "y": [1, 0, 1]},
        "bob": {"x": ["nothing known", "bad"], "y": [4, 0]},
    }
    written(folder / "sent140", "train", [users])
    written(folder / "sent140", "test", [{"ann": {"x": [tweet("bad!")], "y": [0]}}])
    glove(folder / "sent140" / "glove.twitter.27B.200d.txt")
    return folder


def test_a_text_becomes_the_numbers_of_its_characters(tmp_path):
    train, test = datasets.load("shakespeare", str(shakespeare(tmp_path)))
    assert (len(train.labels), len(test.labels)) == (19, 3)
    everything = train.take(slice(None))
    assert everything.inputs.dtype == np.float32
    texts = ["".join(leaf.CHARACTERS[int(number)] for number in row) for row in everything.inputs]
    expected = lines(0, 9)["x"] + lines(20, 4)["x"] + lines(40, 6)["x"]
    assert texts == expected
    assert leaf.CHARACTERS[everything.labels[0]] == PLAY[80]
    assert train.users is not None
    assert train.users.tolist() == ["HAMLET"] * 9 + ["HORATIO"] * 4 + ["OPHELIA"] * 6
    assert len(leaf.CHARACTERS) == len(set(leaf.CHARACTERS)) == 80
    strange = leaf.numbers_of("é~€ " * 20)
    assert set(strange.tolist()) == {leaf.number_of(" ")} == {leaf.number_of("€"), leaf.number_of("~")}


def test_a_tweet_is_the_mean_of_its_words_vectors(tmp_path):
    train, test = datasets.load("sent140", str(sent140(tmp_path)))
    means = [(1 + 0.25 + 0.5) / 3, (-1 + 0.25) / 2, 1.0, 0.0, -1.0]
    assert np.allclose(train.take(slice(None)).inputs, np.repeat(means, 200).reshape(5, 200))
    assert train.labels.tolist() == [1, 0, 1, 1, 0]
    assert np.allclose(test.take(np.array([0])).inputs, -0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "users"), [("shakespeare", shakespeare, 3), ("sent140", sent140, 2)]
)
def test_users_are_clients_and_a_task_learns(name, make, users, tmp_path):
    task = tasks.create(name, partition="natural", data_dir=str(make(tmp_path)))
    sizes = task.federated_data(users, 1).sizes()
    assert sorted(sizes.tolist()) == {"shakespeare": [4, 6, 9], "sent140": [2, 3]}[name]
    mine = task.client_data(int(np.argmax(sizes)), users, 1)
    arrays = task.initial_arrays(1)
    before = task.evaluate(arrays, mine)
    rate = tasks.learning_rate(name)
    after = task.train(arrays, mine, learning_rate=rate, steps=3, batch_size=4, seed=1).arrays
    assert task.evaluate(after, mine).loss < before.loss
    with pytest.raises(ValueError, match=f"num-clients = {users + 1}: must be between 1 and {users}"):
        task.client_data(0, users + 1, 1)


@pytest.mark.parametrize(("name", "make"), [("shakespeare", shakespeare), ("sent140", sent140)])
def test_a_saved_data_set_reads_the_same(name, make, tmp_path):
    original = datasets.load(name, str(make(tmp_path)))
    datasets.save(name, tmp_path / "saved.npz", str(tmp_path))
    saved = datasets.load(name, str(tmp_path / "saved.npz"))
    check_same_samples(saved, original)


ONE = {"x": [PLAY[:80]], "y": ["a"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"all\.json: must be a JSON file: "),
        ("[1]", r"all\.json: must be an object with a list 'users' and an object 'user_data'$"),
        ({"users": ["A"], "user_data": {}}, r"users\[0\] = 'A': must be a text with an entry in user_data"),
        ({"users": [7], "user_data": {"A": ONE}}, r"users\[0\] = 7: must be a text with"),
        ({"users": ["A"], "user_data": {"A": {"x": []}}}, r"users\[0\] = 'A': .* the lists x and y$"),
        (
            {"users": ["A"], "user_data": {"A": {"x": [], "y": ["a"]}}},
            r"user_data\['A'\]: x has 0 entries and y 1: must be equally many$",
        ),
        (
            {"users": ["A"], "num_samples": [2], "user_data": {"A": ONE}},
            r"num_samples\[0\] = 2: must be 1, as user 'A' has$",
        ),
        ({"users": ["A"], "num_samples": 1, "user_data": {"A": ONE}}, r"num_samples = 1: must be 1 numbers$"),
        (
            {"users": ["A"], "user_data": {"A": {"x": ["short"], "y": ["a"]}}},
            r"user_data\['A'\]\['x'\]\[0\] = 'short': must be a text of 80 characters$",
        ),
        (
            {"users": ["A"], "user_data": {"A": {"x": [PLAY[:80]], "y": ["ab"]}}},
            r"user_data\['A'\]\['y'\]\[0\] = 'ab': must be one character$",
        ),
        ({"users": ["A", "A"], "user_data": {"A": ONE}}, r"user 'A': must be in one file, and is in "),
        ({"users": [], "user_data": {}}, r"train: holds no sample: must hold at least one$"),
    ],
)
def test_a_malformed_file_is_refused(content, message, tmp_path):
    folder = tmp_path / "shakespeare"
    written(folder, "test", [{"HAMLET": lines(60, 3)}])
    (folder / "train").mkdir()
    (folder / "train" / "all.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=f"^data-dir: .*{message}"):
        datasets.load("shakespeare", str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [tweet("hi")], "y": [2]}, r"user_data\['A'\]\['y'\]\[0\] = 2: must be 0 or 1 \(or 4"),
        ({"x": [tweet("hi")], "y": [True]}, r"\['y'\]\[0\] = True: must be 0 or 1"),
        ({"x": [tweet("hi")], "y": [[]]}, r"\['y'\]\[0\] = \[\]: "),
        ({"x": [["1", "2"]], "y": [1]}, r"\['x'\]\[0\] = \['1', '2'\]: must be a text, or a list whose"),
    ],
)
def test_a_malformed_tweet_is_refused(change, message, tmp_path):
    written(tmp_path / "sent140", "train", [{"A": change}])
    glove(tmp_path / "sent140" / "glove.6B.200d.txt")
    with pytest.raises(ValueError, match=f"^data-dir: .*{message}"):
        datasets.load("sent140", str(tmp_path))


def test_word_vectors_of_another_form_are_refused(tmp_path):
    file = sent140(tmp_path) / "sent140" / "glove.twitter.27B.200d.txt"
    file.write_text("the 1 2\ngood 0.5 0.25\n")
    with pytest.raises(ValueError, match=r"200d.txt, line 2: 'good 0.5 .*must be a word and 200 numbers$"):
        datasets.load("sent140", str(tmp_path))
    file.write_text("unheard " + " ".join(["1"] * 200))
    with pytest.raises(ValueError, match=r"200d.txt: has no vector for any word of the tweets"):
        datasets.load("sent140", str(tmp_path))
    file.unlink()
    with pytest.raises(ValueError, match=r"/sent140 holds 0 files \*.200d.txt: must hold one, GloVe's word"):
        datasets.load("sent140", str(tmp_path))
    glove(file)
    for each in (file.parent / "train").iterdir():
        each.unlink()
    with pytest.raises(ValueError, match=r"/sent140/train must hold LEAF's JSON files"):
        datasets.load("sent140", str(tmp_path))


def test_arrays_that_are_no_characters_or_vectors_are_refused(tmp_path):
    labels = np.zeros(2, np.int64)
    for name, inputs, message in (
        ("shakespeare", np.full((2, 80), 80, np.uint8), "characters go up to 80: must be between 0 and 79"),
        ("shakespeare", np.zeros((2, 80)), r"characters are float64 \(2, 80\): must be uint8 \(n, 80\)"),
        ("sent140", np.full((2, 200), np.nan, np.float32), "vectors hold NaN or infinities: must be finite"),
        (
            "sent140",
            np.zeros((2, 100), np.float32),
            r"vectors are float32 \(2, 100\): must be float32 \(n, 200",
        ),
    ):
        np.savez(tmp_path / f"{name}.npz", x_train=inputs, y_train=labels, x_test=inputs, y_test=labels)
        with pytest.raises(ValueError, match=f"{name}.npz: {message}"):
            datasets.load(name, str(tmp_path / f"{name}.npz"))


def test_sent140_has_no_download():
    message = r"^data-dir = '': sent140 cannot be downloaded: put sent140.npz or LEAF's files sent140/train/"
    with pytest.raises(ValueError, match=message):
        datasets.load("sent140")


def test_flower_datasets_table_of_shakespeare_becomes_the_same_texts(tmp_path, monkeypatch):
    pytest.importorskip("flwr_datasets")
    theirs = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    samples, folder = lines(0, 40), tmp_path / "shakespeare"
    folder.mkdir()
    users = [f"ACT_{i % 3}" for i in range(40)]
    theirs.Dataset.from_dict({"character_id": users, **samples}).to_csv(str(folder / "train.csv"))
    train, test = datasets.load("shakespeare", str(tmp_path))
    assert (len(train.labels), len(test.labels)) == (36, 4)
    seen = {
        "".join(leaf.CHARACTERS[int(number)] for number in row)
        for half in (train, test)
        for row in half.take(slice(None)).inputs
    }
    assert seen == set(samples["x"])


def test_a_smaller_lstm_reads_the_end_of_a_text_only(tmp_path):
    task = tasks.create(
        "shakespeare", partition="natural", data_dir=str(shakespeare(tmp_path)), hidden=5, depth=1, length=20
    )
    arrays = task.initial_arrays(0)
    assert sum(array.size for array in arrays.values()) == 80 * 8 + 4 * 5 * (8 + 5 + 1) + 80 * (5 + 1)
    data = task.test_data()
    loss = task.evaluate(arrays, data).loss
    data.inputs[:, :60] = 0
    assert task.evaluate(arrays, data).loss == loss
    data.inputs[:, 60] += 1
    assert task.evaluate(arrays, data).loss != loss


@pytest.mark.parametrize("name", ["hidden", "depth", "length"])
def test_an_lstm_has_at_least_one_of_each(name):
    arguments = {name: 0}
    with pytest.raises(ValueError, match=f"^{name} = 0: must be a whole number >= 1$"):
        tasks.create("shakespeare", **arguments)
