"""Strangers send headers that gRPC expands, to a real SuperLink, while an honest node goes on."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from deploy.flower.patches.guards import gate
from deploy.processes.ports import LOOPBACK
from tests.support.fleet import Connection, SuperLink

pytestmark = pytest.mark.network
SOON = 10.0  # s: an honest node behind the attackers' address waits 2.5 s on an idle machine
ATTACKERS = 64
MOST = 200  # MB; without the gate the first attack took 3.8 GB


@pytest.mark.parametrize(("size", "record"), [(400_000, 16_000), (20_000, 500)], ids=["long", "short"])
def test_headers_that_expand_take_little_memory_and_a_node_at_the_same_address_is_answered(
    superlink: SuperLink, size: int, record: int
) -> None:
    """The short ones are as long as the gate lets through, in records so short that gRPC can decrypt each."""
    honest = superlink.node("behind the same address")
    honest.activate()
    superlink.forget_peak()
    before = superlink.memory
    over = threading.Event()
    sent = [0] * ATTACKERS

    def attack(number: int) -> None:
        while not over.is_set():
            with suppress(OSError):  # closed by the SuperLink
                attacker = Connection(superlink)
                attacker.expand(size, record)
                sent[number] += size
                attacker.closed(1.0)
                attacker.close()

    with ThreadPoolExecutor(ATTACKERS) as pool:
        for number in range(ATTACKERS):
            pool.submit(attack, number)
        try:
            for _ in range(3):
                time.sleep(0.5)
                assert honest.latency() < SOON
        finally:
            over.set()
    assert sum(map(bool, sent)) > ATTACKERS // 2
    assert superlink.peak - before < MOST
    assert honest.latency() < SOON


def test_many_devices_behind_one_address_may_connect_at_the_same_moment(superlink: SuperLink) -> None:
    devices = [superlink.node(f"one of many {number}") for number in range(100)]
    with ThreadPoolExecutor(len(devices)) as pool:
        list(pool.map(lambda each: each.activate(), devices))


def test_a_gate_whose_port_is_taken_is_none() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken, pytest.raises(OSError, match="already in use"):
        gate.Gate(f"{LOOPBACK}:{taken.getsockname()[1]}")


def test_all_addresses_and_names_can_be_listened_on() -> None:
    for host in ("0.0.0.0", "[::]", "localhost"):
        listening = gate.Gate(f"{host}:0")
        socket.create_connection((LOOPBACK, listening.port)).close()
