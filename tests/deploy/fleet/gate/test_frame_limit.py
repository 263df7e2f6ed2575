"""Frames of HTTP/2 are counted wherever the network cuts them, and those beyond the limit wait."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest

from deploy.fleet.gate import frame_limit
from deploy.fleet.gate.frame_limit import FRAMES, FrameBudget, FrameCounter

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, SETTINGS, PING = 0, 4, 6


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(frame_limit, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def frame(kind, length=8):
    return struct.pack("!I", length)[1:] + bytes([kind]) + bytes(5 + length)


def passed(pieces, budget, clock):
    """Return what a counter lets pass of all pieces, and for how many seconds it let them wait."""
    counter, result, seconds = FrameCounter(), bytearray(), 0
    for piece in pieces:
        while (count := counter.passing(piece, budget)) < len(piece):
            result += piece[:count]
            piece = piece[count:]
            assert budget.wait == pytest.approx(1.0)
            clock[0] += 1.0
            seconds += 1
        result += piece
    return bytes(result), seconds


@pytest.mark.parametrize("largest", [1, 5, 100, 30_000])
def test_frames_are_counted_wherever_they_are_cut_and_all_bytes_pass(clock, monkeypatch, largest):
    monkeypatch.setattr(frame_limit, "FRAMES", 20)
    rng = np.random.default_rng(largest)
    frames = [(int(rng.integers(10)), int(rng.choice([0, 8, 100, 3000]))) for _ in range(100)]
    counted = sum(length < 1024 if kind == DATA else 1 + length // 1024 for kind, length in frames)
    data = PREFACE + b"".join(frame(*each) for each in frames)
    pieces, at = [], 0
    while at < len(data):
        size = int(rng.integers(1, largest + 1))
        pieces.append(data[at : at + size])
        at += size
    budget = FrameBudget()
    result, seconds = passed(pieces, budget, clock)
    assert result == data
    # A frame passes as long as something is left, and may count for three.
    assert counted / 22 - 1 <= seconds <= counted / 20


def test_the_connections_of_a_node_share_a_budget_which_is_renewed_each_second(clock):
    budget, first, second = FrameBudget(), FrameCounter(), FrameCounter()
    pings = FRAMES * frame(PING)
    assert first.passing(PREFACE + pings, budget) == len(PREFACE + pings)
    assert second.passing(PREFACE + pings, budget) == len(PREFACE)
    clock[0] += 0.9
    assert second.passing(pings, budget) == 0
    clock[0] += 0.1
    assert second.passing(pings, budget) == len(pings)


def test_data_in_large_frames_does_not_count_and_large_frames_without_data_count_more(clock):
    budget, counter = FrameBudget(), FrameCounter()
    large = 10 * FRAMES * frame(DATA, 1024)
    assert counter.passing(PREFACE + large, budget) == len(PREFACE + large)
    assert budget.left == FRAMES
    counter.passing(frame(DATA, 1023) + frame(SETTINGS, 16_000), budget)
    assert budget.left == FRAMES - 1 - 16
