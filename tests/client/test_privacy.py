"""A client keeps its group private, and adds noise to its reports."""

import stat

import numpy as np
import pytest
from flwr.app import RecordDict

from strategies.clients.reports import GROUP, INVITATION, LOSS, STATUS, Report
from strategies.flower.messages import read_report
from strategies.selectors.invitation import GroupMember

from ..support.client_app import DATA, DIGITS, MODEL, TRAIN, flat, moved, report, say

MEMBER = {"private-group": 1}
ASKED = {"num-groups": 3, "epsilon": 2.0, "server-round": 4}


def test_a_private_group_is_reported_by_randomised_response_only(tmp_path):
    (tmp_path / "secret").write_text("2a")
    node = {**MEMBER, "secret-file": str(tmp_path / "secret")}
    assert report(STATUS, node=node).group is None
    mine = GroupMember(1, 3, 2.0, 0x2A)
    content = say(GROUP, ASKED, node)
    assert read_report(content) == Report(group=mine.report(4))  # no identity, no size
    rates = [0.0, 0.5, 1.0]
    answers = [
        report(INVITATION, {**ASKED, "server-round": n, "rates": rates}, node).accepts for n in range(40)
    ]
    assert answers == [mine.accepts(n, rates) for n in range(40)]
    assert 5 < sum(map(bool, answers)) < 35


def test_a_limit_of_epsilon_binds_only_the_report_of_the_group():
    node = {**MEMBER, "group-epsilon": 0.5}
    assert report(INVITATION, {**ASKED, "rates": [0.0, 1.0, 0.0]}, node).accepts
    say("train", {**TRAIN, "update-scales": [1.0, 3.0, 7.0]}, node, arrays=MODEL)
    assert report(GROUP, {**ASKED, "epsilon": 0.5}, node).group is not None


def test_a_private_member_scales_its_own_update():
    plain = moved(say("train", TRAIN, MEMBER, arrays=MODEL))
    scaled = moved(say("train", {**TRAIN, "update-scales": [1.0, 3.0, 7.0]}, MEMBER, arrays=MODEL))
    assert flat(scaled) - flat(MODEL) == pytest.approx(3 * (flat(plain) - flat(MODEL)), abs=1e-5)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "private-group = None in the node's config: must be one of '0', '1', '2'"),
        ({"private-group": 3}, "private-group = 3"),
        ({"private-group": "north"}, "private-group = 'north'"),
        ({"private-group": 1.0}, r"private-group = 1.0 in the node's config: must be text or a whole number"),
        ({**MEMBER, "group-epsilon": 1.0}, r"epsilon = 2\.0: must be at most 1\.0, the client's"),
        ({**MEMBER, "group-answers": "never"}, "group-answers = 'never'"),
    ],
)
def test_a_private_group_beyond_its_limits_is_refused(node, message):
    with pytest.raises(ValueError, match=message):
        say(GROUP, ASKED, node)


def test_a_private_group_has_a_name(tmp_path):
    (tmp_path / "secret").write_text("2a")
    node = {"private-group": "south", "secret-file": str(tmp_path / "secret")}
    names = {"group-names": ["north", "south", "west"]}
    assert report(GROUP, ASKED | names, node).group == GroupMember(1, 3, 2.0, 0x2A).report(4)
    plain = moved(say("train", TRAIN, node, arrays=MODEL))
    scaled = moved(say("train", {**TRAIN, "update-scales": [1.0, 3.0, 7.0]} | names, node, arrays=MODEL))
    assert flat(scaled) - flat(MODEL) == pytest.approx(3 * (flat(plain) - flat(MODEL)), abs=1e-5)
    for wrong in ({"group-names": ["north", "south"]}, {"group-names": "south"}):
        with pytest.raises(ValueError, match=r"group-names = .*: must be 3 names"):
            say(GROUP, ASKED | wrong, node)


def test_the_partitions_group_is_private_where_clients_decide():
    """The status of a client would say its group, if the run's partition makes groups."""
    run = {"partition": "groups:3"}
    reported = report(STATUS, run=run | {"selector": "flics"}).group
    assert reported in (0, 1, 2)
    private = run | {"selector": "flics-private"}
    assert report(STATUS, run=private).group is None
    assert report(STATUS, run=private, node={"group": "north"}).group == "north"  # its owner wants it
    rates = {"rates": [1.0 * (number == reported) for number in range(3)], "num-groups": 3}
    assert report(INVITATION, {**ASKED, **rates}, run=private).accepts
    other = {"private-group": (reported + 1) % 3}
    assert not report(INVITATION, {**ASKED, **rates}, run=private, node=other).accepts


def test_a_secret_is_made_once_and_kept_in_its_file(tmp_path):
    file = tmp_path / "secret"
    node = {**MEMBER, "secret-file": str(file)}
    report(GROUP, ASKED, node)
    first = file.read_text()
    assert 2**64 < int(first, 16) < 2**128
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    said = [report(GROUP, {**ASKED, "server-round": n}, node).group for n in range(30)]
    assert file.read_text() == first
    assert len(set(said)) == 1  # permanent: the same for life
    fresh = {**node, "group-answers": "fresh"}
    file.write_text("1")  # a random secret gives only two of the three answers in one of fifteen cases
    assert len({report(GROUP, {**ASKED, "server-round": n}, fresh).group for n in range(30)}) == 3
    file.write_text("not a number")
    with pytest.raises(ValueError, match=r"secret-file = .*: must hold one hexadecimal number"):
        say(GROUP, ASKED, node)


def test_without_a_file_the_secret_lives_in_the_nodes_state():
    states = [RecordDict(), RecordDict()]
    secrets = []
    for state in states:
        config = {**ASKED, "epsilon": 0.001}
        say(GROUP, config, MEMBER, state=state)
        (kept,) = state.config_records.values()
        secrets.append(kept["hex"])
        say(GROUP, config, MEMBER, state=state)
        assert [each["hex"] for each in state.config_records.values()] == [secrets[-1]]
    assert secrets[0] != secrets[1]


NOISE = {"noise-epsilon": 1.0, "loss-bound": 4.0, "norm-bound": 2.0}
EVERYTHING = {**TRAIN, "report-gradient-variance": True, "report-update-norm": True}


def test_a_norm_is_clipped_where_there_is_a_bound():
    full = report("train", EVERYTHING, arrays=MODEL).update_norm
    assert full is not None
    assert report("train", EVERYTHING, {"norm-bound": full / 2}, arrays=MODEL).update_norm == full / 2
    assert report("train", EVERYTHING, {"norm-bound": full * 2}, arrays=MODEL).update_norm == full


def test_a_norm_that_the_server_would_measure_otherwise_is_not_reported():
    """With noise or beyond its bound; and where a group scales the update, it would tell the group."""
    full = report("train", TRAIN, arrays=MODEL).update_norm
    assert full is not None
    assert report("train", TRAIN, {"norm-bound": full * 2}, arrays=MODEL).update_norm == full
    assert report("train", TRAIN, {"norm-bound": full / 2}, arrays=MODEL).update_norm is None
    assert report("train", TRAIN, NOISE, arrays=MODEL).update_norm is None
    scaled = {**TRAIN, "update-scales": [1.0, 2.0, 3.0]}
    assert report("train", scaled, {"private-group": 1}, arrays=MODEL).update_norm is None


def test_with_noise_only_noisy_numbers_are_reported():
    told = [report("train", EVERYTHING, NOISE, arrays=MODEL) for _ in range(20)]
    assert {each.gradient_variance for each in told} == {None}
    # Fresh each time, though the question is the same.
    assert len({each.train_loss for each in told}) > 1 < len({each.update_norm for each in told})
    assert all(0 <= (each.update_norm or 0) <= 2 and 0 <= (each.train_loss or 0) <= 4 for each in told)
    unbounded = report("train", EVERYTHING, {"noise-epsilon": 1.0}, arrays=MODEL)
    assert unbounded.train_loss is None
    assert unbounded.update_norm is None
    measured = say("evaluate", {}, NOISE, arrays=MODEL).metric_records["metrics"]
    assert measured.keys() == {"num-examples", "loss"}
    measured = say("evaluate", {}, {"noise-epsilon": 1.0}, arrays=MODEL).metric_records["metrics"]
    assert measured.keys() == {"num-examples"}
    measured = say("evaluate", {}, arrays=MODEL).metric_records["metrics"]
    assert measured.keys() == {"num-examples", "loss", "accuracy"}


def test_noise_has_the_stated_size():
    # ε = 50 at δ = .5: σ is a tenth of the bound or so, and the loss is far from both ends.
    node = {"noise-epsilon": 50.0, "noise-delta": 0.5, "loss-bound": 6.0}
    true = DIGITS.evaluate(MODEL, DATA).loss
    losses = np.array([report(LOSS, {"seed": 1}, node, arrays=MODEL).loss for _ in range(60)])
    assert losses.mean() == pytest.approx(true, abs=0.4)
    assert 0.2 < losses.std() < 1.2


def test_the_node_config_takes_precedence_over_the_run_config():
    assert (
        report(LOSS, {"seed": 1}, run=NOISE, arrays=MODEL).loss
        != report(LOSS, {"seed": 1}, arrays=MODEL).loss
    )
    off = report(LOSS, {"seed": 1}, {"noise-epsilon": 0}, run={"noise-epsilon": 1.0}, arrays=MODEL)
    assert off.loss == report(LOSS, {"seed": 1}, arrays=MODEL).loss


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"noise-epsilon": -1.0}, r"noise-epsilon = -1\.0: must be a finite number of at least 0"),
        ({"noise-epsilon": "much"}, "noise-epsilon = 'much'"),
        ({"noise-epsilon": 99.0, "loss-bound": 1.0}, r"epsilon = 99\.0: must be greater than 0 and at most"),
        ({"noise-epsilon": 1.0, "noise-delta": 0.9}, r"delta = 0\.9"),
    ],
)
def test_a_wrong_budget_in_the_node_config_is_refused(node, message):
    with pytest.raises(ValueError, match=message):
        say("train", TRAIN, node, arrays=MODEL)
