"""The clients of a script, and the network between them and the server."""

from functools import partial
from math import inf, nan
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from simulation.grid import SUPERLINK, InProcessGrid, LazyArray
from strategies.clients.reports import GROUP, INVITATION, LOSS, NORM, STATUS, UPDATE
from strategies.selectors.invitation import GroupMember

from .script import DEADLINE, EPOCH, GARBAGE, LIES, ODD, TOO_LATE

Arrays = dict[str, "NDArray[Any]"]
_NEVER_SENT = "message-0"
_QUICK = 2.0**-10  # s, minimal latency of a reply to a query


class KilledError(BaseException):
    """The server process was killed. Not an Exception: no code can catch a kill -9."""


class ScriptedError(Exception):
    """A client crashes because the script says so."""


class World(InProcessGrid):
    """Simulates a script: its nodes, their replies in the order of their latencies, and the kills.

    A reply is a function of the script, the round and the message, so that a repeated round is the same.

    Attributes
    ----------
    round : int
        The round under way, or the next one.
    willing : dict of int to bool
        Whether each member is available for training, by its last report that reached the server.
    sent : dict of int to Arrays
        The first model that each member sent in reply to TRAIN in this round, usable or not.
    asked : dict of int to int
        Member -> number of TRAIN messages it was sent in this round.
    answered : set of int
        Members whose reply in this round contained any model and was pulled.
    in_time : set of int
        The members of ``answered`` whose reply must be used.
    """

    def __init__(self, script, kills):
        super().__init__(latency=self._latency, frozen=True, offline_after=DEADLINE / 2)
        self.clock.sleep(EPOCH)
        self.script = script
        self.kills = list(kills)
        self.round = 1
        self.willing = {}
        self._can_tell = True  # whether the app has a status handler
        self.sent = {}
        self.asked = {}
        self.answered = set()
        self.in_time = set()
        self.problems = []
        self._entered = 0  # the round whose nodes are online
        self._words = {}  # `willing` at the beginning of each round
        self._older = {}  # member -> its first TRAIN message
        self._member_asked = {}  # message id -> member
        self._heard = set()  # ids of messages whose reply was pulled
        self._last_sent = ""  # the type of the message that was sent last
        self._pulled = 0

    def comes_in_time(self, member):
        """Return whether a member's reply to TRAIN in this round would be usable and in time."""
        at = self.round, member
        usable = self._is_usable(self.script.faults.get(at, "")) and at not in self.script.asleep
        return usable and self.script.latencies[at] < DEADLINE

    def _is_usable(self, fault):
        """Return whether a reply to TRAIN with this fault can be used: personal models need a report."""
        if fault == "no report" and self.script.options["selector"] == "personalised-osmd":
            return False
        return fault in ("", *ODD, *LIES)

    # --- the network -----------------------------------------------------------------------------------

    def resume(self, round):
        """Go back to the beginning of a round; replies to the killed server are lost."""
        self.round, self._entered = round, 0
        self._in_flight.clear()
        self.willing = dict(self._words.get(round, self.willing))

    def member_at(self, node_id):
        """Return the member of a node of this round; None for ghosts and offline nodes."""
        if (self._entered, node_id) in self.script.ghosts:
            return None
        return self.script.nodes[self._entered - 1].get(node_id)

    def get_nodes(self):
        if self._entered != self.round:
            self.kill("saved", self.round - 1)
            self.kill("torn", self.round - 1)
            self._enter_round()
        return super().get_nodes()

    def _enter_round(self):
        wanted = self.script.nodes[self.round - 1]
        for node_id in set(self.get_node_ids()) - wanted.keys():
            self.remove_node(node_id)
        for node_id in self.get_node_ids():
            self.remove_node(node_id)  # added again in the script's order
        for node_id, member in wanted.items():
            ghost = (self.round, node_id) in self.script.ghosts
            handler = _nothing if ghost else partial(self._play, member)
            self.add_node(handler=handler, node_id=node_id, name=self.script.members[member].name)
        # A killed server loses the replies to earlier rounds, and nothing else may differ after a kill.
        self._in_flight = [each for each in self._in_flight if each.message.metadata.message_type == STATUS]
        self._replies.clear()
        self._entered = self.round
        self._words[self.round] = dict(self.willing)
        self.sent, self.asked, self._pulled = {}, {}, 0
        self.answered, self.in_time = set(), set()

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            self._last_sent = kind = message.metadata.message_type
            node_id = message.metadata.dst_node_id
            if kind == "train":
                self._check_question(message)
            elif kind != "evaluate":
                self.kill("asking", self.round)
            if node_id not in self.script.nodes[self._entered - 1]:
                self.problems.append(f"a {kind} message to node {node_id}, which is not online")
        ids = super().push_messages(messages)
        for message, message_id in zip(messages, ids, strict=True):
            member = self.member_at(message.metadata.dst_node_id)
            if member is not None:
                self._member_asked[message_id] = member
        if any(message.metadata.message_type == "train" for message in messages):
            self.kill("sent", self.round)
        return ids

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        for reply in replies:
            self._note(reply)
        if replies and replies[0].metadata.message_type == "train":
            self._pulled += 1
            self.kill("replies", self.round)
        return replies

    def kill(self, moment, round):
        """Kill the server if the script has a kill at this moment; each kill happens once."""
        for kill in self.kills:
            if moment == "replies" and self._pulled <= 3 * kill.share:
                continue
            if (kill.round, kill.moment) == (round, moment):
                self.kills.remove(kill)
                self.killed = kill
                raise KilledError

    def _check_question(self, message):
        """Check that a TRAIN message is allowed."""
        round = _config(message)["server-round"]
        if round != self.round:
            self.problems.append(f"round {round!r} is asked for in round {self.round}")
        node_id = message.metadata.dst_node_id
        member = self.member_at(node_id)
        if member is None:
            return  # a ghost; the server cannot know
        self.asked[member] = self.asked.get(member, 0) + 1
        told = self.script.options["ask_status"] and self._can_tell
        if told and not self.willing.get(member, True):
            self.problems.append(f"member {member} was sent TRAIN after reporting itself unavailable")

    def _note(self, reply):
        """Record a reply that reached the server."""
        self._heard.add(reply.metadata.reply_to_message_id)
        member = self._member_asked.pop(reply.metadata.reply_to_message_id, None)
        if member is None:
            return
        if reply.has_error():
            if reply.metadata.message_type == STATUS and "registered with name" in str(reply.error.reason):
                self._can_tell = False
            return
        kind = reply.metadata.message_type
        said = {}
        if kind == "evaluate":
            return
        for record in reply.content.values():
            if isinstance(record, MetricRecord):
                said |= record
        willing = bool(said.get("available", True))
        garbage = self.script.faults.get((self.round, member)) in GARBAGE
        if kind == "train" and (self._last_sent != "train" or reply.metadata.group_id != str(self.round)):
            return  # the round no longer waited for it: the server learns only how long the client took
        if kind == "train" and reply.content.array_records and not garbage:
            self.answered.add(member)
        if kind == "train" and willing and garbage:
            return
        self.willing[member] = willing
        if kind == "train" and willing and member in self.sent:
            self.in_time.add(member)

    def _latency(self, message):
        node_id, kind = message.metadata.dst_node_id, message.metadata.message_type
        member = self.member_at(node_id)
        if member is None:
            return inf
        at = self.round, member
        if kind == "train":
            return TOO_LATE if self.script.faults.get(at) == "late" else self.script.latencies[at]
        late = {"evaluate": self.script.evaluation_faults, STATUS: {}}.get(kind, self.script.poll_faults)
        if late.get(at) == "late":
            return TOO_LATE
        return self.script.latencies[at] / 8 + _QUICK

    # --- the clients -----------------------------------------------------------------------------------

    def _play(self, member, message):
        try:
            return self._answer(member, message)
        except ScriptedError:
            raise
        except Exception as error:  # else it would count as a scripted crash
            self.problems.append(f"member {member} is not able to answer: {error!r}")
            raise

    def _answer(self, member, message):
        kind = message.metadata.message_type
        if kind == STATUS:
            return self._tell_status(member, message)
        config = _config(message)
        round = int(config["server-round"])
        if kind == "train":
            return self._train(member, round, config, message)
        if kind == "evaluate":
            fault = self.script.evaluation_faults.get((round, member))
            if fault is None:
                fault = self.script.poll_faults.get((round, member))
                fault = (
                    "silence" if fault == "nothing" else fault
                )  # a metric that no client has is an error of its own
            return self._measure(member, fault, message)
        if (round, member) in self.script.asleep:
            return _decline(message)
        return self._poll(member, round, kind, config, message)

    def _tell_status(self, member, message):
        fault, until = self.script.status_faults.get(member, ("", 0))
        if fault == "no handler":
            raise ScriptedError("No query function registered with name 'status'")  # as Flower does
        if self.round <= until:
            if fault == "silence":
                return None
            if fault == "crash":
                raise ScriptedError("the disk is gone")
            if fault == "garbage":
                return _reply(message, {"num-examples": -1})
        who = self.script.members[member]
        # An unavailable member repeats its last report. Otherwise a resumed server, which queries it again,
        # would learn more than a server that was not killed.
        asleep = (self.round, member) in self.script.asleep and not self.willing.get(member, True)
        identity = {"group": who.group}
        if who.claim is not None:
            identity["client-id"] = who.claim
        said = {"num-examples": who.size, "available": int(not asleep)}
        return _reply(message, said, identity=ConfigRecord({**identity}))

    def _poll(self, member, round, kind, config, message):
        fault = self.script.poll_faults.get((round, member), "")
        if fault == "decline":
            return _decline(message)
        if kind == LOSS:
            return self._measure(member, fault, message)
        if fault == "silence":
            return None
        if fault == "crash":
            raise ScriptedError("out of memory")
        if kind in (NORM, UPDATE):
            if fault == "nothing":  # an app whose answers hold no norm is an error of its own
                return None
            return self._train_for_a_question(member, kind, fault, config, message)
        num_groups = int(config["num-groups"])
        who = GroupMember(self.script.members[member].group, num_groups, 2.0, secret=member)
        said = {}
        if kind == GROUP:
            said = {"group": 99 if fault == "huge" else who.report(round)}
        elif kind == INVITATION:
            said = {"accepts": int(who.accepts(round, np.array(config["rates"])))}
        if fault == "nothing":
            said = {}
        identity = ConfigRecord({name: value for name, value in said.items() if name == "group"})
        return _reply(message, {k: v for k, v in said.items() if k != "group"}, identity=identity)

    def _train_for_a_question(self, member, kind, fault, config, message):
        """Reply with the norm of the update that this member would send, and with its model if asked."""
        w = _decoded(message)
        arrays = self._moved(member, w, config, share=0.3)
        norm = sum(float(np.square(arrays[name] - w[name], dtype=np.float64).sum()) for name in w) ** 0.5
        norm = {"NaN": nan, "infinite": inf, "negative": -1.0, "huge": 1e12}.get(fault, norm)
        said = {"update-norm": norm, "gradient-variance": 0.1 * (1 + member)}
        return _reply(message, said, **({"arrays": _record(arrays)} if kind == UPDATE else {}))

    def _moved(self, member, w, config, share):
        """Return the model that a member makes of w: a share of the way to its aim, with noise."""
        seed = int(config["seed"])
        noise = ((seed % 1009) / 1009 - 0.5) / 100
        return {
            name: (w[name] + share * (aim - w[name] + noise)).astype(aim.dtype)
            for name, aim in self._aim(member, w).items()
        }

    def _measure(self, member, fault, message):
        """Reply with the loss of the model in the message."""
        if fault == "silence":
            return None
        if fault == "crash":
            raise ScriptedError("out of memory")
        w = _decoded(message)
        loss = float(sum(np.square(w[name] - aim).sum() for name, aim in self._aim(member, w).items()))
        loss = {"NaN": nan, "infinite": inf, "negative": -1.0, "huge": 1e12}.get(fault or "", loss)
        said = {"loss": loss, "num-examples": self.script.members[member].size}
        missing = {"nothing": "loss", "no size": "num-examples"}.get(fault or "")
        return _reply(message, {name: value for name, value in said.items() if name != missing})

    def _aim(self, member, w):
        """Return the minimiser of a member's loss."""
        return {
            name: np.full(array.shape, np.sin(1.0 + 3 * member + i), array.dtype)
            for i, (name, array) in enumerate(w.items())
        }

    def _train(self, member, round, config, message):
        fault = self.script.faults.get((round, member), "")
        if (round, member) in self.script.asleep or fault == "decline":
            return _decline(message)
        older = self._older.setdefault(member, message)
        # A late first reply tells how slow the client is; a server that was killed in between is not told.
        repeats = older.metadata.message_id in self._heard
        w = _decoded(message)
        share = 0.3
        if "update-scales" in config:
            share *= float(config["update-scales"][self.script.members[member].group])
        parts = {}
        if "part-scales" in config:
            scales = np.array(config["part-scales"], dtype=np.float64)
            share *= float(scales.mean())
            norms = dict(zip(("model-norm", "personal-norm"), 0.1 * (1 + member) * (scales > 0), strict=True))
            parts = {"num-parts": 2, **{name: float(norm) for name, norm in norms.items() if norm}}
        arrays = self._moved(member, w, config, share)
        if "control" in message.content:
            control = _arrays(message, "control")
            arrays = {name: array - 0.1 * control[name].numpy() for name, array in arrays.items()}
            arrays = {name: array.astype(w[name].dtype) for name, array in arrays.items()}
        said = {
            "num-examples": self.script.members[member].size,
            "num-steps": 3,
            "train-loss": float(sum(np.abs(arrays[name] - w[name]).sum() for name in w)),
            "gradient-variance": 0.1 * (1 + member),
            "accuracy": 0.5,
            **parts,
        }
        if fault in LIES:
            arrays, said = _lie(fault, w, arrays, said)
        finite = all(np.isfinite(array).all() for array in arrays.values())
        if round == self.round and self._is_usable(fault) and finite:
            self.sent[member] = arrays
        if "update-weight" in config:  # the masks would cancel in the sum
            moves = [np.subtract(array, w[name], dtype=np.float64) for name, array in arrays.items()]
            norm = sum(float(np.square(move).sum()) for move in moves) ** 0.5
            said |= {"update-norm": norm}
            weight = float(config["update-weight"])
            arrays = {
                name: np.asarray(w[name] + weight * (a - w[name]), a.dtype) for name, a in arrays.items()
            }
        if fault == "crash":
            raise ScriptedError("out of memory")
        if fault == "dead":
            reply = Message(Error(5, "Node Unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = SUPERLINK
            return reply
        if fault == "silence":
            return None
        if fault == "vanish":
            if round == self.round and message.metadata.dst_node_id in self.get_node_ids():
                self.remove_node(message.metadata.dst_node_id)
            return None
        if fault == "stale":
            return _trained(older, arrays, said) if repeats else None
        if fault == "stale and own" and repeats:
            return [_trained(older, _wrong(arrays), said), _trained(message, arrays, said)]
        if fault == "twice":
            return [_trained(message, arrays, said), _trained(message, _wrong(arrays), said)]
        if fault == "misaddressed":
            reply = _trained(message, arrays, said)
            reply.metadata.__dict__["_reply_to_message_id"] = _NEVER_SENT
            return reply
        return Message(_content(fault, arrays, said), reply_to=message)


def _nothing(message):
    """Send no reply."""


def _config(message):
    return cast("ConfigRecord", message.content["config"])  # `content.config_records` copies them all


def _arrays(message, name):
    return cast("ArrayRecord", message.content[name])


def _decoded(message):
    return {name: array.numpy() for name, array in _arrays(message, "arrays").items()}


def _reply(message, said, **records):
    return Message(RecordDict({"metrics": MetricRecord(said), **records}), reply_to=message)


def _trained(message, arrays, said):
    return Message(_content("", arrays, said), reply_to=message)


def _decline(message):
    return _reply(message, {"available": 0})


def _record(arrays):
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = LazyArray(np.asarray(array), copy=False)  # arithmetic makes scalars of 0-d arrays
    return record


def _wrong(arrays):
    """Return a model whose use in the aggregate is detectable."""
    return {name: array + array.dtype.type(1000) for name, array in arrays.items()}


def _lie(fault, w, arrays, said):
    kind, _, value = fault.rpartition(" ")
    if kind == "update x":
        factor = float(value)
        return {
            name: (w[name] + factor * (array - w[name])).astype(array.dtype) for name, array in arrays.items()
        }, said
    if fault == "sign flip":
        return {name: 2 * w[name] - array for name, array in arrays.items()}, said
    if fault == "no update":
        return w, said
    key = {"loss": "train-loss", "size": "num-examples"}[kind]
    return arrays, said | {key: float(value)}


def _content(fault, arrays, said):
    """Return the content of a reply with its fault."""
    arrays, first = dict(arrays), next(iter(arrays))
    change = _CHANGED_ARRAYS.get(fault)
    if change is not None:
        arrays[first] = change(arrays[first])
    elif fault == "other names":
        arrays = {f"{name}.weight": array for name, array in arrays.items()}
    elif fault == "a name too few":
        del arrays[first]
    elif fault == "a name too many":
        arrays["more"] = arrays[first]
    elif fault in ("float64", "column order"):
        arrays = {
            name: array.astype(np.float64) if fault == "float64" else np.array(array, order="F")
            for name, array in arrays.items()
        }
    record = _record(arrays)
    if fault in _JUNK:
        record[first] = _JUNK[fault]
    content = RecordDict({"arrays": record, "metrics": MetricRecord(said | _CHANGED_REPORTS.get(fault, {}))})
    if fault == "two models":
        content["more"] = record
    elif fault == "nothing":
        return RecordDict()
    elif fault == "no report":
        del content["metrics"]
    elif fault == "size in words":
        content["config"] = ConfigRecord({"num-examples": "many"})
    return content


def _set_first(value):
    def change(array):
        changed = array.astype(np.float64)
        changed.flat[0] = value
        return changed

    return change


_CHANGED_ARRAYS = {
    "other shape": lambda array: array.reshape(-1, 1),
    "complex numbers": lambda array: array.astype(np.complex64),
    "text": lambda array: array.astype("U8"),
    "NaN": _set_first(nan),
    "infinite": _set_first(inf),
    "beyond float32": _set_first(1e300),
}
_JUNK = {
    "junk bytes": Array("float32", (2, 2), "numpy.ndarray", b"junk"),
    "another serialisation": Array("float32", (2, 2), "torch.tensor", b"junk"),
}
_CHANGED_REPORTS = {
    "size -3": {"num-examples": -3},
    "size 1e200": {"num-examples": 1e200},
    "size NaN": {"num-examples": nan},
    "loss NaN": {"train-loss": nan},
    "loss negative": {"train-loss": -1.0},
    "variance infinite": {"gradient-variance": inf},
    "variance negative": {"gradient-variance": -1.0},
    "steps 0": {"num-steps": 0},
    "metrics in lists": {"accuracy": [0.1, 0.2]},
    "extra metrics": {"num-batches": 7, "battery": 0.3},
}
