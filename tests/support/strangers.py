"""Clients that answer with anything: values, records, arrays and whole replies drawn at random."""

import pickle
import random
from io import BytesIO
from math import inf, nan

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from strategies.clients.reports import Report

EXPLODED = []
"""What was unpickled; nothing ever is."""
CLEAR, CLIPBOARD = "\x1b[2J", "\x1b]52;c;cm0gLXJmIH4=\x07"
NO_HANDLER = "No query function registered with name 'status'"
NUMBERS = [
    *(0, 1, -1, 3, 7, 2**31, 2**63 - 1, -(2**63), 10**30, 10**400),
    *(
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.0,
        1e-300,
        5e-324,
        1e12,
        1.1e12,
        1e154,
        1e300,
        1.7e308,
        -1.7e308,
        nan,
        inf,
        -inf,
    ),
]
TEXTS = [
    *(
        "",
        " ",
        "a",
        "0",
        "1",
        "2",
        "north",
        "honest-0",
        "honest-1 ",
        "h\u043enest-0",
        "node-3",
        "x" * 129,
        "y" * 50_000,
    ),
    *(
        CLEAR,
        CLIPBOARD,
        f"honest-0{CLEAR}",
        "a\nb",
        "a\rb",
        "\u202egnp.exe",
        "\u200b",
        "\ud800",
        "\x00",
        "%s%n",
        "[red]a[/]",
    ),
]
NAMES = [
    *(field.alias or "" for field in Report.model_fields.values()),
    *Report.model_fields,
    *("loss", "accuracy", "x" * 500, CLEAR, "", "num_examples", "server-round", "seed"),
]


class Bomb:
    def __reduce__(self):
        return EXPLODED.append, ("a client's pickle was loaded",)


def pickled():
    file = BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    return file.getvalue()


def npy(header, data=b"", version=b"\x01\x00"):
    """Return a .npy file with any header."""
    text = header.encode("latin-1", "replace") + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + data


class Stranger:
    """A client of a federation whose model is ``w``, (2,) float32; every answer is drawn anew."""

    def __init__(self, seed, trains=True):
        self.random = random.Random(seed)
        self.trains = trains  # half of the time with a usable update
        self.answers = 0
        self._earlier = []

    def __call__(self, message):
        self.answers += 1
        r = self.random
        self._earlier = [*self._earlier[-3:], message]
        kind = r.random()
        if kind < 0.05:
            return None
        if kind < 0.15:
            return self._error(message)
        if kind < 0.2:  # twice, to an earlier message, or with another type
            return [self._reply(r.choice(self._earlier)) for _ in range(2)]
        if kind < 0.25:
            reply = self._reply(message)
            reply.metadata.message_type = r.choice(["query", "train", "evaluate", "system", "query.x"])
            reply.metadata.__dict__["_src_node_id"] = r.choice([0, 1, 2, 3, 2**64 - 1])
            return reply
        if kind < 0.3:  # no message at all, as Flower may inflate it
            reply = self._reply(message)
            reply.__dict__["_content"] = r.choice([None, ArrayRecord(), "text", 3])
            return reply
        return self._reply(message)

    def _error(self, message):
        reasons = [None, NO_HANDLER, f"{CLEAR}{CLIPBOARD}", "x" * 100_000, *TEXTS]
        code = self.random.choice([0, 1, 2, 2, 2, 5, -1, 2**31])
        return Message(Error(code, self.random.choice(reasons)), reply_to=message)

    def _reply(self, message):
        r = self.random
        content = RecordDict()
        for _ in range(r.randrange(4)):
            content[f"{self._text()}{len(content)}"] = self._metrics() if r.random() < 0.5 else self._config()
        if r.random() < 0.02:
            content["long"] = MetricRecord({"a": [0.5] * 100_000, "b": [nan] * 3})
        if r.random() < 0.01:
            for number in range(200):
                content[str(number)] = MetricRecord()
        if message.metadata.message_type == "train" or r.random() < 0.1:
            for _ in range(r.choice([0, 1, 1, 1, 1, 1, 2])):
                content[f"{r.choice(['arrays', 'a', CLEAR])}{len(content)}"] = self._arrays()
        return Message(content, reply_to=message)

    def _text(self):
        return self.random.choice(TEXTS)

    def _number(self):
        return self.random.choice(NUMBERS)

    def _metrics(self):
        r, record = self.random, MetricRecord()
        for _ in range(r.randrange(6)):
            many = [float(r.choice([0.5, nan, inf, 1e308])) for _ in range(r.randrange(4))]
            record[r.choice(NAMES)] = many if r.random() < 0.2 else self._number()
        return record

    def _config(self):
        r, record = self.random, ConfigRecord()
        for _ in range(r.randrange(6)):
            values = [
                self._number, self._text, self._text, lambda: b"\x1b[2J", lambda: True, lambda: False,
                lambda: [self._text()], lambda: [1.0, 2.0], lambda: [],
            ]  # fmt: skip
            record[r.choice(NAMES)] = r.choice(values)()
        return record

    def _arrays(self):
        r, record = self.random, ArrayRecord()
        if r.random() < 0.4:
            record["w"] = Array(np.array([r.uniform(-2, 2), r.uniform(-2, 2)], np.float32))
            return record
        for _ in range(r.choice([0, 1, 1, 1, 2])):
            record[r.choice(["w", "w", "w", "v", CLEAR, "x" * 1000])] = self._array()
        return record

    def _array(self):
        r = self.random
        if r.random() < 0.5:
            shape = r.choice([(2,), (2,), (2,), (), (0,), (1,), (3,), (2, 1), (1, 2), (2, 2, 2)])
            dtype = r.choice(
                ["f2", "f4", ">f4", "f8", "g", "i1", "i8", "u8", "?", "c8", "U3", "S2", "M8[s]", "V4"]
            )
            with np.errstate(all="ignore"):
                return Array(np.full(shape, r.choice([0, 1, 2])).astype(dtype))
        if r.random() < 0.4:
            values = [r.choice([nan, inf, -inf, 1e38, -3e38, 0.0]) for _ in range(2)]
            return Array(np.array(values, np.float32))
        good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
        zeros, huge = b"\x00" * 8, good.replace("2,", "1000000000000,")
        data = r.choice(
            [
                *(b"", b"\x93NUMPY", pickled(), pickle.dumps(Bomb()), r.randbytes(60)),
                *(npy(good, zeros[:7]), npy(good, zeros), npy(huge, zeros), npy(huge, zeros, b"\x03\x00")),
                *(npy(good, zeros, version) for version in (b"\x02\x00", b"\x03\x00", b"\x09\x09")),
                *(npy(good.replace("2,", shape), zeros) for shape in ("-1,", "True,", "2, 2**9", "'a',")),
                npy(good.replace("'<f4'", "'|O'"), pickle.dumps(Bomb())),
                npy(good.replace("'<f4'", "[('a', '<f4')]"), zeros),
                npy(good.replace("'<f4'", "('<f4', (3,))"), zeros),
                *(npy("(" * 900), npy("__import__('os').abort()"), npy(f"{CLEAR}{good}")),
            ]
        )
        stype = r.choice(["numpy.ndarray"] * 6 + ["", "pickle", CLEAR, "x" * 1000])
        return Array(r.choice(["float32", "O", CLEAR]), r.choice([(2,), (10**9,), (-1,)]), stype, data)


def honest(number, group=None):
    """A client that answers every question of every selector, and moves the model towards its number."""

    def node(message):
        content = RecordDict()
        report = {"num-examples": 10.0, "train-loss": 1.0 + number, "loss": 1.0 + number, "num-steps": 1}
        kind = message.metadata.message_type
        if kind == "query.group":
            content["c"] = ConfigRecord({"group": number % 2})
        elif kind == "query.invitation":
            content["m"] = MetricRecord({"accepts": 1})
        else:
            content["m"] = MetricRecord({**report, "gradient-variance": 0.5})
        if kind == "query.status":
            identity = {"client-id": f"honest-{number}"}
            content["c"] = ConfigRecord(identity | ({} if group is None else {"group": group}))
        if kind == "train":
            w = message.content.array_records["arrays"]["w"].numpy()
            step = np.float32(0.1) * (np.float32(number) - w)
            content["arrays"] = ArrayRecord({"w": Array((w + step).astype(np.float32))})
        return Message(content, reply_to=message)

    return node
