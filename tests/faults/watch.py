"""Invariants of each round, checked against the actual replies of the clients."""

from collections.abc import Mapping
from dataclasses import fields
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.selectors import Selector

from .script import LIES, REGISTERED

Arrays = Mapping[str, "NDArray[Any]"]


class BrokenError(AssertionError):
    """An invariant is violated."""


class Watch:
    """Checks one history round by round; a killed run and its resumed runs are one history.

    Parameters
    ----------
    script : Script
        The script of the history.
    arrays : mapping of str to array
        The initial model.

    Attributes
    ----------
    records : dict of int to RoundRecord
        By round.
    models : dict of int to Arrays
        The model after each round; 0: the initial model.
    """

    def __init__(self, script, arrays):
        self.script = script
        self.records = {}
        self.models = {0: arrays}
        self._last = 0
        self._ids = {0: []}  # the roster after each round
        self._member = {}  # of each client chosen in the last round

    def resumed(self, round):
        """Continue after this round; repeated rounds must be equal to the earlier ones."""
        self._last = round

    # --- a round ---------------------------------------------------------------------------------------

    def round_is_over(self, record, strategy, world):
        """Check a record passed to `on_round`."""
        number, feedback, selection = record.round, record.feedback, record.selection
        if number != self._last + 1:
            raise BrokenError(f"round {number} follows round {self._last}")
        if number != world.round:
            raise BrokenError(f"round {number} is over in round {world.round}")
        self._last = number
        for problem in world.problems:
            raise BrokenError(problem)
        self._check_roster(strategy, world)
        self._check_probabilities(strategy)
        self._check_sizes(strategy)
        clients = [int(client) for client in selection.clients]
        if len(set(clients)) != len(clients):
            raise BrokenError(f"clients {clients} are not distinct")
        self._check_asked(clients, record, strategy, world)
        responded = {client for client, each in zip(clients, feedback.responded, strict=True) if each}
        self._check_failures(record, clients, responded)
        if not record.skipped:
            usable = {client for client, member in self._member.items() if member in world.in_time}
            if (
                self.script.options["guard"] is not False
            ):  # the guard may reject usable replies and records the reason
                usable -= {client for client, why in record.failures.items() if "beyond the limit" in why}
            if responded != usable:
                raise BrokenError(
                    f"usable answers are of clients {sorted(usable)}, counted were {sorted(responded)}"
                )
            self._check_patience(record, world)
            if len(responded) < int(self.script.options["quorum"]):
                raise BrokenError(f"{len(responded)} answers: fewer than the quorum")
        else:
            self._check_void(record, responded, world)
        self._check_weights(record, strategy)
        self._check_feedback(record, world)
        before = self.records.get(number)
        if before is not None:
            require_same(before, record, f"round {number}, played again,")
        self.records[number] = record

    def _check_roster(self, strategy, world):
        roster = strategy.roster
        ids = roster.ids()
        if len(set(ids)) != len(ids):
            raise BrokenError(f"identities are not unique: {ids}")
        before = self._ids[world.round - 1]
        if ids[: len(before)] != before:
            raise BrokenError(f"clients were renumbered: {before} -> {ids}")
        self._ids[world.round] = ids
        claims = [member.claim for member in self.script.members]
        seen = set()
        for node_id in world.get_node_ids():
            client, member = roster.client_at(node_id), world.member_at(node_id)
            if client is None:
                continue
            if roster.node_of(client) != node_id:
                raise BrokenError(f"client {client} has a node that is not its own")
            if client in seen:
                raise BrokenError(f"client {client} has two nodes")
            seen.add(client)
            if member is None or not self.script.options["ask_status"] or member in self.script.status_faults:
                continue
            who = self.script.members[member]
            right = who.name or who.claim or ""
            if who.name or (claims.count(right) == 1 and not right.startswith(REGISTERED)):
                known = roster.id_of(client)
                if known != right:
                    raise BrokenError(f"node {node_id} is {right}, and known as {known}")

    def _check_probabilities(self, strategy):
        p = strategy.selector.probabilities
        count = len(strategy.roster)
        if p.shape != (count,):
            raise BrokenError(f"probabilities are of {p.size} clients, there are {count}")
        if not (np.isfinite(p).all() and (p >= 0).all()):
            raise BrokenError(f"probabilities are {p}")
        if not (abs(p.sum() - 1) < 1e-9):
            raise BrokenError(f"probabilities sum to {p.sum()}")

    def _check_asked(self, clients, record, strategy, world):
        """Check that exactly the selected clients were sent one TRAIN message, and were online."""
        self._member = {}
        for client in clients:
            member = world.member_at(strategy.roster.node_of(client))
            if member is not None:  # else a ghost
                self._member[client] = member
        chosen = sorted(self._member.values())
        if world.asked != dict.fromkeys(chosen, 1):
            raise BrokenError(f"asked were members {world.asked}, chosen {chosen}")
        if set(record.quarantined) & set(clients):
            raise BrokenError(f"clients {record.quarantined} are quarantined, selected were {clients}")
        online = len(world.script.nodes[world.round - 1])
        if not (len(clients) <= record.num_available <= online - len(record.quarantined)):
            raise BrokenError(
                f"{len(clients)} chosen of {record.num_available} available; {online} nodes, "
                f"{len(record.quarantined)} quarantined"
            )

    def _check_failures(self, record, clients, responded):
        failed = record.failures
        if set(failed) - set(clients):
            raise BrokenError(f"failures of clients {sorted(failed)}, chosen were {clients}")
        if not all(failed.values()):
            raise BrokenError(f"failures without a reason: {dict(failed)}")
        if responded & set(failed):
            raise BrokenError(f"answered and failed: {sorted(responded & set(failed))}")
        if not record.skipped:
            missing = set(clients) - responded - set(failed)
            if missing:
                raise BrokenError(f"clients {sorted(missing)} neither answered nor failed")

    def _check_void(self, record, responded, world):
        """Check that a round with enough honest replies is not skipped because of another reply."""
        if self.script.options["server_strategy"] not in ("FedAvg", "FedProx"):
            return  # other strategies may refuse a round after the selector has learned from it
        if responded:
            raise BrokenError("a skipped round has replies")
        absurd = "update x 1e36" in self.script.faults.values()  # a sum with it may overflow
        if self.script.options.get("masked_updates") and record.failures:
            return  # the sum needs everybody
        honest = [m for m in world.in_time if self.script.faults.get((record.round, m)) not in LIES]
        if len(honest) >= int(self.script.options["quorum"]) and not absurd:
            raise BrokenError(f"members {honest} replied, but the round was skipped: {record.skipped}")

    def _check_sizes(self, strategy):
        """Check the selector's sizes: overrides, else reports (clipped by a guard), else their mean."""
        overrides = self.script.options.get("client_sizes", {})
        ids, said = strategy.roster.ids(), strategy.roster.sizes()
        sizes = np.array([overrides.get(each, own) for each, own in zip(ids, said, strict=True)])
        is_declared = np.array([each in overrides for each in ids])
        known = np.isfinite(sizes)
        mean = sizes[known].mean() if known.any() else 1.0
        told = strategy.selector.client_sizes
        exact = is_declared | (self.script.options["guard"] is False)
        wrong = np.where(exact, told != np.where(known, sizes, mean), told > sizes)
        if wrong.any():
            raise BrokenError(f"sizes are {sizes}, the selector has {told}")

    def _check_patience(self, record, world):
        """Check that the round waits for all timely replies, unless enough others arrived."""
        options, asked = self.script.options, record.selection.clients.size
        k, draws = int(options["clients_per_round"]), int(record.selection.counts.sum())
        spare = options["over_selection"] > 1 and draws > k
        enough = max(ceil(asked * k / draws), int(options["quorum"])) if spare else asked
        left_out = [
            member
            for member in self._member.values()
            if world.comes_in_time(member) and member not in world.answered
        ]
        if left_out and len(world.answered) < enough:
            raise BrokenError(
                f"members {left_out} were not waited for: {len(world.answered)} of {enough} had answered"
            )

    def _check_weights(self, record, strategy):
        weights, responded = record.weights, record.feedback.responded
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise BrokenError(f"weights are {weights}")
        if weights[~responded].any():
            raise BrokenError(f"weights {weights} of answers {responded}")
        if not responded.any():
            return
        selector = strategy.selector
        if type(selector).finalize is Selector.finalize and self.script.options["correction"] == "equal":
            share = responded.size / responded.sum()
            right = np.where(responded, record.selection.weights * share, 0.0)
            if not np.allclose(weights, right, rtol=1e-12):
                raise BrokenError(f"weights are {weights}, not {right}")

    def _check_feedback(self, record, world):
        """Check the selector's update norms against the models sent, where nothing modifies them."""
        feedback = record.feedback
        for name in ("update_norms", "losses", "gradient_variances", "diversities"):
            values = getattr(feedback, name)
            if not np.isnan(values[~feedback.responded]).all():
                raise BrokenError(f"{name} of clients without a reply: {values}")
        answered = feedback.responded.copy()
        if self.script.options.get("masked_updates"):  # norms are reported by the clients, if at all
            answered &= np.isfinite(feedback.update_norms)
        norms = feedback.update_norms[answered]
        if not (np.isfinite(norms).all() and (norms >= 0).all()):
            raise BrokenError(f"update norms are {norms}")
        if self.script.options["variates"] == "fedvarp":
            return
        w = self.models[record.round - 1]
        for position in np.flatnonzero(answered):
            client = int(record.selection.clients[position])
            sent = world.sent[self._member[client]]
            squares = sum(
                float(np.square(np.subtract(sent[name], w[name], dtype=np.float64)).sum()) for name in w
            )
            norm = squares**0.5 / float(self.script.options["local_learning_rate"])
            told = feedback.update_norms[position]
            close = abs(told - norm) <= 1e-4 * norm + 1e-6
            if not (close or (client in record.clipped and told < norm)):
                raise BrokenError(
                    f"client {client}: its update has norm {norm:.6g}, the selector got {told:.6g}"
                )

    # --- the model -------------------------------------------------------------------------------------

    def model_is(self, number, arrays, world):
        """Check the model evaluated after a round."""
        first = self.models[0]
        for name, array in arrays.items():
            like = array.shape == first[name].shape and array.dtype == first[name].dtype
            if not like:
                raise BrokenError(f"{name} became {array.dtype} of shape {array.shape}")
            if not np.isfinite(array).all():
                raise BrokenError(f"the model is not finite after round {number}")
        if number == 0:
            return
        record, old = self.records[number], self.models[number - 1]
        changed = any(arrays[name].tobytes() != old[name].tobytes() for name in old)
        if record.skipped:
            if changed:
                raise BrokenError(f"round {number} was skipped ({record.skipped}), but the model changed")
        else:
            # After a huge update, steps are below the resolution of floats.
            fine = all(np.abs(array).max(initial=0) < 1e6 for array in old.values())
            moves = (
                fine
                and self.script.options["server_strategy"] in ("FedAvg", "FedProx", "FedAvgM")
                and any(self.script.faults.get((number, member)) != "no update" for member in world.in_time)
            )
            if moves and not changed:
                raise BrokenError(f"round {number} was not skipped, but the model did not change")
            self._check_step(record, old, arrays, world)
        if number in self.models:
            same = all(arrays[name].tobytes() == self.models[number][name].tobytes() for name in arrays)
            if not same:
                raise BrokenError(f"the model after round {number}, played again, differs")
        self.models[number] = arrays

    def _check_step(self, record, old, new, world):
        """Compare the new model with w + Σ c_m (w_m - w) of the models sent, where nothing else applies."""
        options = self.script.options
        if options["server_strategy"] not in ("FedAvg", "FedProx") or options["variates"] or record.clipped:
            return
        for name in old:
            total, largest = np.zeros(old[name].shape), float(np.abs(old[name]).max())
            for client, weight in zip(record.selection.clients, record.weights, strict=True):
                if weight > 0:
                    sent = world.sent[self._member[int(client)]][name]
                    total += weight * np.subtract(sent, old[name], dtype=np.float64)
                    largest = max(largest, float(np.abs(total).max()), float(np.abs(sent).max()))
            right = old[name] + total
            if not np.allclose(new[name], right, rtol=1e-4, atol=1e-5 * largest):
                raise BrokenError(
                    f"after round {record.round} {name} is {new[name].ravel()}, w + sum of c (w_m - w) is "
                    f"{right.ravel()}"
                )

    def run_is_over(self, rounds):
        """Check that the history is complete."""
        if sorted(self.records) != list(range(1, rounds + 1)):
            raise BrokenError(f"records of rounds {sorted(self.records)}")
        if sorted(self.models) != list(range(rounds + 1)):
            raise BrokenError(f"models of rounds {sorted(self.models)}")


def require_same(one, other, what, but=frozenset({"seconds", "phases"})):
    """Compare two records bit for bit, except for their durations."""
    for field in fields(one):
        if field.name in but:
            continue
        a, b = getattr(one, field.name), getattr(other, field.name)
        if hasattr(a, "__dataclass_fields__"):
            require_same(a, b, f"{what} {field.name}:", but)
        elif isinstance(a, np.ndarray):
            same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            if not same:
                raise BrokenError(f"{what} {field.name} is {b}, was {a}")
        else:
            if not (a == b or (a != a and b != b)):
                raise BrokenError(f"{what} {field.name} is {b!r}, was {a!r}")
