"""Settings that each selector refuses: the error names the setting, the value and what is allowed."""

import math
import re

import pytest

from strategies.selectors import create

# What a selector must have beside the wrong setting.
NEEDED = {
    **{name: {"groups": [0, 0, 1, 1]} for name in ("flics", "naive-group")},
    "flics-private": {"group_shares": "1/1"},
}
OF_DELTA = [
    ({"smoothness": 1.0}, "smoothness = 1.0, local_learning_rate = None, "),
    ({"alpha_1": 0, "alpha_2": 0}, "alpha_1 = 0.0, alpha_2 = 0.0: must not both be 0"),
    ({"alpha_1": -1.0}, "alpha_1 = -1.0"),
    ({"local_steps": 0}, "local_steps = 0"),
    ({"floor": 0.0}, "floor = 0.0: must be finite and between 1e-09 and 1"),
    ({"design": "pareto"}, "design = 'pareto': must be one of 'own', 'independent', 'stratified'"),
]
OF_GROUPS = [
    ({"groups": None}, "groups = None: must be given for each client"),
    ({"groups": [0, 1, 0]}, "groups has shape (3,): must be (4,)"),
    ({"groups": [0, 1, 0, -1]}, "groups holds -1"),
    ({"groups": [0, 1, 2, 2], "group_shares": "1/1"}, "groups holds 2: must be from 0 to 1, the groups"),
    ({"group_shares": [1, 0]}, "group_shares = 0.0: must be finite and between 1e-100"),
    ({"group_shares": [1, math.nan]}, "group_shares = nan"),
    ({"group_shares": "1/x"}, "group_shares = '1/x': must be a number for each group"),
    ({"group_shares": "north:1/2"}, "group_shares = 'north:1/2': must be a number for each group: by"),
    ({"group_shares": "a:1/a:2"}, "must have one number for each group, 'a' has two"),
    ({"group_shares": {1: 2, "1": 3}}, "'1' has two"),
    ({"no_such": 1}, " has no such setting; its settings are: group_shares"),
]
WRONG = {
    "osmd": [({"a_max": 2.0, "ask_norms": True}, "a_max = 2.0, ask_norms = True: must be at most one of")],
    "adaptive-osmd": [
        ({"num_rounds": None}, "num_rounds = None"),
        ({"alpha": 0}, "alpha = 0.0: must be finite and between 1e-15 and 1"),
        ({"alpha": 1.5}, "alpha = 1.5"),
        ({"alpha": math.nan}, "alpha = nan"),
        ({"alpha": True}, "alpha = True"),
        ({"alpha": "0.4"}, "alpha = '0.4'"),
        ({"learning_rate_multiplier": 0.0}, "learning_rate_multiplier = 0.0"),
        ({"rates": "K2"}, "rates = 'K2': must be one of 'v1', 'v2'"),
        ({"gamma": 1.0}, "gamma = 1.0: must be one of 'scale-free', 'printed'"),
        ({"a_max": 0.0}, "a_max = 0.0: must be finite and between 1e-200 and 1e+200"),
        ({"expert_base": "K"}, "its settings are: replacement, design, ask_norms, alpha, rates"),
    ],
    "personalised-osmd": [
        ({"personal_share": 1.5}, "personal_share = 1.5: must be finite and between 0 and 1"),
        ({"a_max": 2.0}, "a_max = 2.0: must be left out"),
        ({"ask_norms": True}, "ask_norms = True: must be left out"),  # two samplers have no common bound
        ({"num_rounds": None}, "num_rounds = None"),
    ],
    "k-vib": [
        ({"gamma_multiplier": 0.0}, "gamma_multiplier = 0.0"),
        ({"mix": 1.5}, "mix = 1.5"),
        ({"bound": -1.0}, "bound = -1.0"),
        ({"num_rounds": None}, "num_rounds = None"),
    ],
    "pow-d": [
        ({"num_candidates": 1}, "num_candidates = 1: must be >= 2 (the clients per"),
        ({"num_candidates": "4@1/1@9"}, "num_candidates = 1"),
        ({"num_candidates": 2.5}, "num_candidates = 2.5"),
        ({"num_candidates": -1}, "num_candidates = -1"),
        ({"num_candidates": "many"}, "num_candidates = 'many'"),
        ({"batch_size": 5}, "batch_size = 5: pow-d has no such setting"),
    ],
    "cpow-d": [({"batch_size": 0}, "batch_size = 0: must be >= 1")],
    "adapow-d": [
        ({"num_rounds": None}, "num_rounds = None: must be given with adapow-d"),
        ({"halve_every": -1}, "halve_every = -1"),
        ({"drop_at": 1.5}, "drop_at = 1.5"),
    ],
    "afl": [
        ({"alpha1": 1.1}, "alpha1 = 1.1: must be finite and between 0 and 1"),
        ({"alpha2": -1}, "alpha2 = -1.0"),
        ({"alpha3": math.nan}, "alpha3 = nan"),
        ({"power": 1}, "its settings are: averaging, alpha1, alpha2, alpha3"),
    ],
    "oort": [
        ({"penalty": -1}, "penalty = -1.0: must be"),
        ({"window": 0}, "window = 0: must be"),
        ({"exploration": 1.5}, "exploration = 1.5: must be"),
        ({"clip": "x"}, "clip = 'x': must be"),
    ],
    "tifl": [({"policy": "quick"}, "policy = 'quick'")],
    "delta": OF_DELTA,
    "prac-delta": OF_DELTA,
    "clustered-updates": [
        ({"similarity": "L1"}, "similarity = 'L1': must be one of 'cosine', 'euclidean'"),
        ({"tree": "points"}, "tree = 'points'"),
        ({"tree_size": 1}, "tree_size = 1: must be between 2 and 5000"),
    ],
    "divfl": [
        ({"averaging": "scaled-sizes"}, "averaging = 'scaled-sizes': must be one of 'clusters'"),
        ({"subsample": 0.0}, "subsample = 0.0"),
        ({"ground_set": 1}, "ground_set = 1"),
    ],
    "naive-group": OF_GROUPS,
    "flics": [
        *OF_GROUPS,
        ({"min_shares": [0.6, 0.6]}, "min_shares = (0.6, 0.6): must sum to 1 or less"),
        ({"min_shares": [-0.1]}, "min_shares = -0.1"),
        ({"cost_budget": -1}, "cost_budget = -1.0"),
        ({"design": "dice"}, "design = 'dice': must be one of 'coins', 'numbers'"),
        ({"energy_budgets": "1/inf"}, "energy_budgets = inf"),
        ({"groups": [0, 1, 2, 2], "energy_budgets": "1/2"}, "groups holds 2: must be from 0 to 1"),
        ({"group_shares": "a:1/b:1", "min_shares": "c:.1"}, "min_shares names 'c': must be one of 'a', 'b'"),
        ({"group_shares": "a:1/b:1", "energy_budgets": "a:1"}, "energy_budgets names 'a': must name 'a'"),
        ({"costs": [1, 1, 1, -1]}, "costs holds -1.0"),
        ({"energies": [1, 1, 1, math.nan]}, "energies holds nan"),
    ],
    "flics-private": [
        ({"group_shares": ""}, "group_shares = (): must be given"),
        ({"group_shares": "1/0"}, "group_shares = 0.0"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"coin_epsilon": 0.0}, "coin_epsilon = 0.0"),
        ({"groups": [0, 1]}, "groups = [0, 1]: flics-private has no such setting"),
    ],
}


@pytest.mark.parametrize(
    ("name", "settings", "text"), [(name, *each) for name, rows in WRONG.items() for each in rows]
)
def test_a_wrong_setting_is_refused(name, settings, text):
    given = {"clients_per_round": 2, "num_rounds": 50, **NEEDED.get(name, {}), **settings}
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        create(name, 4, **given)
