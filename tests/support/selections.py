"""What tests of selectors share: small federations, answers to what selectors ask, comparisons."""

import numpy as np

from strategies.selectors import Feedback, Selection

SIZES = np.array([1.0, 9.0, 2.0, 4.0, 30.0, 1.0, 3.0, 5.0])
M, K = SIZES.size, 3

# What a selector needs beyond the plain `create` to show its behaviour in a few rounds.
SETTINGS = {
    name: {"learning_rate_multiplier": 300.0} for name in ("osmd", "adaptive-osmd", "adaptive-doubling-osmd")
} | {"flics-private": {"group_shares": "1/2", "epsilon": 4.0}}


def per_client(name, n):
    """The settings per client that a selector must have."""
    if name in ("flics", "naive-group"):
        return {"groups": np.arange(n) % 2}
    return {"lipschitz": 1.0 + np.arange(n) % 3} if name == "lipschitz-is" else {}


class Asked:
    """A selector with the answers to what it asks: reports, acceptances of invitations, groups of joiners."""

    def __init__(self, selector):
        vars(self)["selector"] = selector

    def __getattr__(self, name):
        return getattr(self.selector, name)

    def select(self, round, **arguments):
        polled = {key: value for key, value in arguments.items() if key not in ("budget", "draw")}
        candidates = self.selector.candidates(round, **polled)
        if candidates is not None:
            groups, values = candidates % 2, norm_of(candidates, round)
            reports = {kind: groups * 1.0 if kind == "group" else values for kind in self.selector.polls_for}
            invitation = self.selector.invitation(round, candidates, reports, budget=arguments.get("budget"))
            if invitation is not None:
                coins = np.random.default_rng(round).random(candidates.size)
                reports["accepts"] = 1.0 * (coins < invitation.rates[invitation.versions, groups])
            arguments |= {"candidates": candidates, "reports": reports}
        return self.selector.select(round, **arguments)

    def add_clients(self, client_sizes, **more):
        groups = per_client(self.selector.name, len(client_sizes))
        self.selector.add_clients(client_sizes, **(groups | more))


def norm_of(client, round):
    """A made-up norm that differs between clients and changes over rounds."""
    return (1 + client % 5) ** 2 * (1 + 0.3 * np.sin(round + client))


def sketch_of(clients, round):
    """Made-up sketches of the clients' updates, of which most repeats itself."""
    angles = np.asarray(clients) * 0.9 + 0.1 * np.sin(round)
    return (
        np.stack([np.cos(angles), np.sin(angles), 0.2 + 0 * angles], axis=1)
        * norm_of(clients, round)[:, None]
    )


def feedback(norms, responded=None, **others):
    """Feedback with these norms; the other values are not reported unless given."""
    norms = np.asarray(norms, dtype=float)
    missing = np.full(norms.size, np.nan)
    fields = {"losses": missing, "gradient_variances": missing, "diversities": missing} | others
    responded = np.ones(norms.size, dtype=bool) if responded is None else responded
    return Feedback(update_norms=norms, responded=responded, **fields)


def drawn(clients, counts, p):
    """The selection that so many draws with replacement from p make."""
    clients, counts = np.array(clients), np.array(counts)
    importance = counts / (counts.sum() * p[clients])
    return Selection(clients, counts, p[clients], importance, importance / p.size)


def whole_p(num_clients, select):
    """The whole p of a selector, from as many rounds as it takes to draw every client."""
    p = np.full(num_clients, np.nan)
    for round in range(5000):
        selection = select(round)
        p[selection.clients] = selection.probabilities
        if not np.isnan(p).any():
            return p
    raise AssertionError("somebody is never drawn")


def play(selector, rounds, **select):
    """Run rounds in which every client responds, and return the selections."""
    selections = []
    for round in rounds:
        selection = selector.select(round, **select)
        clients = selection.clients
        told = feedback(norm_of(clients, round), sketches=sketch_of(clients, round))
        selector.update(round, selection, told)
        selections.append(selection)
    return selections


def learned(make, **arguments):
    selector = make(**arguments)
    play(selector, range(1, 11))
    return selector


def assert_same_selections(left, right):
    for one, other in zip(left, right, strict=True):
        for field in ("clients", "counts", "probabilities", "importance", "weights"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))


def assert_same_state(left, right):
    assert left.keys() == right.keys()
    for key, array in left.items():
        assert array.dtype == right[key].dtype
        np.testing.assert_array_equal(array, right[key])
