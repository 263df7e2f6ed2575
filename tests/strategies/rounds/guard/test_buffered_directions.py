"""The directions of buffered rounds: an update is compared with those of the models nearest to its own."""

import numpy as np
import pytest

from strategies.options import GuardSettings
from strategies.rounds.guard.buffered_directions import VersionedDirections
from strategies.rounds.guard.guard import Guard

D = 64


def turning(version):
    """The direction (D,) of descent at the model of a round: it turns by a quarter in four rounds."""
    found = np.zeros(D)
    found[:2] = np.cos(version * np.pi / 8), np.sin(version * np.pi / 8)
    return found


def noisy(rng, version, factor=1.0):
    return factor * (turning(version) + 0.05 * rng.normal(size=D))


def play(directions, rounds=24, lag=4):
    """Client 0 sends flipped updates of the newest model, the others true ones of an older model."""
    rng = np.random.default_rng(0)
    found = {}
    for number in range(1, rounds + 1):
        clients = np.array([0, 1 + number % 10, 1 + (number + 5) % 10])
        versions = np.array([number, number - lag, number - lag])
        sketches = np.stack([noisy(rng, number, -2.0), noisy(rng, number - lag), noisy(rng, number - lag)])
        agreements = directions.agreements(clients, sketches, versions).own
        found |= dict(zip(clients.tolist(), agreements.tolist(), strict=True))
    return found


def test_a_flipped_update_of_the_newest_model_is_seen_although_the_direction_turns():
    """Within the others' delay the direction turns by 90 degrees, so the flip agrees with their last one."""
    found = play(VersionedDirections())
    assert found[0] < -0.5
    assert min(agreement for client, agreement in found.items() if client) > 0.5


def test_the_guard_of_buffered_rounds_rejects_it():
    rng, guard = np.random.default_rng(1), Guard(11, GuardSettings(level="strict"), buffered=True)
    missing = np.full(3, np.nan)
    rejected = []
    for number in range(1, 25):
        clients = np.array([0, 1 + number % 10, 1 + (number + 5) % 10])
        versions = np.array([number, number - 4, number - 4])
        sketches = np.stack([noisy(rng, number, -1.0), noisy(rng, number - 4), noisy(rng, number - 4)])
        norms = np.linalg.norm(sketches, axis=1)
        judged = guard.judge(number, clients, norms, missing, missing, None, sketches, versions=versions)
        rejected.append(sorted(judged.rejected))
    assert [0] in rejected
    assert all(each in ([], [0]) for each in rejected)


def test_few_clients_and_unusable_updates_have_no_agreement():
    directions, clients = VersionedDirections(), np.arange(7)
    found = directions.agreements(clients, np.ones((7, D)), np.zeros(7, dtype=np.int64))
    assert np.isnan(found.own).all()
    assert found.of_others.size == 0
    found = directions.agreements(
        np.array([7, 8]), np.stack([np.ones(D), np.full(D, np.nan)]), np.array([1, 1])
    )
    assert found.own[0] == pytest.approx(1)
    assert np.isnan(found.own[1])
    assert found.of_others.size == 7
    assert found.single.tolist() == [True, True]
    assert found.deviations.tolist() == [1, 1]


def test_the_deviation_of_an_agreement_is_that_of_random_directions():
    """Of 200 runs with random directions; the standard error of a standard deviation is 5 %."""
    rng, clients = np.random.default_rng(3), np.arange(10)
    standardised, deviations = [], []
    for _ in range(200):
        directions = VersionedDirections()
        for version in (0, 4, 5, 9):
            found = directions.agreements(clients, rng.normal(size=(10, D)), np.full(10, version))
            late = directions.agreements(clients[:1], rng.normal(size=(1, D)), np.array([version + 6]))
        standardised.append((found.own[1] * np.sqrt(D) / found.deviations[1], late.own[0] * np.sqrt(D)))
        deviations.append((found.deviations[1], late.deviations[0]))
    assert np.allclose(deviations, deviations[0])
    assert deviations[0][0] == pytest.approx(0.5, abs=0.01)  # four updates with about the same company
    assert 1 / np.sqrt(8) < deviations[0][1] < 0.5  # eight, half of them with less company
    assert np.std([first for first, _ in standardised]) == pytest.approx(1, abs=0.12)
    assert np.std([second for _, second in standardised]) == pytest.approx(deviations[0][1], rel=0.12)


def test_the_newest_updates_of_each_client_stay_if_another_sends_many():
    directions, rng = VersionedDirections(), np.random.default_rng(2)
    for client in range(1, 11):
        for version in range(6):
            directions.agreements(np.array([client]), rng.normal(size=(1, D)), np.array([version]))
    for version in range(200):
        directions.agreements(np.array([0]), rng.normal(size=(1, D)), np.array([version]))
    kept = directions.arrays()["clients"]
    assert kept.size == 128
    assert [int((kept == client).sum()) for client in range(1, 11)] == [4] * 10
