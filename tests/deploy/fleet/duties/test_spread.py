"""Devices go from a front end with clearly more than its share of them to those with fewer."""

import pytest

from deploy.fleet.duties import spread
from deploy.fleet.duties.spread import Load, Spread, excess


@pytest.mark.parametrize(
    ("devices", "away", "better"),
    [
        ([4, 0], 2, ["b:1"]),
        ([3, 0], 1, ["b:1"]),
        ([2, 1], 0, []),
        ([1, 0], 0, []),
        ([0, 4], 0, []),
        ([22, 18], 0, []),  # within a tenth of its share
        ([24, 16], 4, ["b:1"]),
        ([30, 30, 0], 10, ["c:1"]),
        ([30, 0, 0], 20, ["b:1", "c:1"]),
        ([10_000, 0], spread.MOST, ["b:1"]),
        ([5], 0, []),
        ([], 0, []),
    ],
)
def test_the_excess_over_the_share_goes_to_those_with_fewer(devices, away, better):
    loads = [Load(name, f"{name}:1", count) for name, count in zip("abc", devices, strict=False)]
    assert excess(loads, "a") == (away, better)


def test_no_front_end_gets_more_than_its_share_if_all_send_their_excess():
    for devices in ([90, 30, 0], [7, 0, 0, 0], [50, 49, 1]):
        loads = [Load(name, f"{name}:1", count) for name, count in zip("abcd", devices, strict=False)]
        left = [each.devices - excess(loads, each.home)[0] for each in loads]
        assert min(left) >= 0
        assert max(left) <= spread.SLACK * sum(devices) / len(devices) + 1


def test_a_front_end_without_an_address_sends_none_away():
    assert excess([Load("b", "b:1", 0)], "a") == (0, [])


def test_a_chosen_node_is_sent_away_once():
    told = Spread()
    assert told.better(1) == []
    assert sorted(told.choose(5, ["b:1"], {1, 2})) == [1, 2]
    (chosen,) = told.choose(1, ["c:1"], {1, 2})
    assert told.better(3 - chosen) == []
    assert [told.better(chosen), told.better(chosen)] == [["c:1"], []]
