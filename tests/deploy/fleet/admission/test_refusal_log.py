"""A stranger writes few lines to the log, and none of its own."""

import logging
from types import SimpleNamespace

import flwr

from deploy.fleet.admission import refusal_log
from deploy.fleet.admission.refusal_log import (
    INTERVAL,
    LINES,
    LONGEST_REASON,
    REASONS,
    RefusalLog,
    limit_lines,
    printable,
)
from strategies.clients import printable as app


def test_a_reason_writes_one_short_line(caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        RefusalLog().refused("/Pull", "wrong\n[/Pull] pi-1 has joined" + "x" * 5000, "ipv4:192.0.2.1:7")
    (line,) = caplog.messages
    assert line.startswith(r"[/Pull] Refused: wrong\n[/Pull] pi-1 has joined")
    assert line.endswith("x, from ipv4:192.0.2.1:7")
    assert "\n" not in line
    assert len(line) < LONGEST_REASON + 60


def test_varied_reasons_and_ports_of_an_address_use_up_few_lines(caplog):
    log = RefusalLog()
    with caplog.at_level(logging.WARNING, "flwr"):
        for number in range(2000):
            log.refused("/Pull", f"reason {number // 2}", f"ipv4:192.0.2.1:{number}")
        log.refused("/Push", "another method", "ipv4:192.0.2.1:7")
        log.refused("/Pull", "another address", "ipv4:192.0.2.2:7")
    assert [line.split(" ", 2)[2].partition(",")[0] for line in caplog.messages] == [
        *(f"reason {number}" for number in range(REASONS)), "another method", "another address",
    ]  # fmt: skip


def test_many_addresses_use_up_a_bounded_number_of_lines(caplog):
    log = RefusalLog()
    with caplog.at_level(logging.WARNING, "flwr"):
        for number in range(2 * LINES):
            log.refused("/Pull", "no key", f"ipv4:192.0.{number // 256}.{number % 256}:7")
    assert len(caplog.messages) == LINES


def test_a_client_whose_requests_flower_logs_uses_up_a_bounded_number_of_lines(caplog, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(refusal_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    logger = logging.Logger("of the test")
    logger.addHandler(caplog.handler)
    limit_lines(logger)

    def say(line, path=f"{flwr.__path__[0]}/supercore/error/grpc.py"):
        logger.handle(logger.makeRecord("flwr", logging.ERROR, path, line, "no run %s", (line,), None))

    for _ in range(2 * LINES):
        say(1)
        say(2, "/flwr/deploy/fleet/duties/presence.py")
    assert caplog.messages.count("no run 1") == LINES
    assert caplog.messages.count("no run 2") == 2 * LINES
    say(3)
    now[0] += INTERVAL
    say(1)
    assert caplog.messages[-2:] == ["no run 3", f"no run 1 ({LINES} more were not logged)"]


def test_refusals_that_were_not_logged_are_counted_in_the_next_minute(caplog, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(refusal_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    log = RefusalLog()
    with caplog.at_level(logging.WARNING, "flwr"):
        for _ in range(3):
            log.refused("/Pull", "unknown", "ipv4:192.0.2.1:7")
        now[0] += INTERVAL
        log.refused("/Pull", "unknown", "ipv4:192.0.2.1:8")
    assert caplog.messages == [
        "[/Pull] Refused: unknown, from ipv4:192.0.2.1:7",
        "[/Pull] Refused: unknown, from ipv4:192.0.2.1:8 (2 more were not logged)",
    ]


def test_the_same_characters_are_escaped_as_by_the_app():
    for code in (*range(0x3100), 0xD800, 0xE000, 0xFEFF, 0xE0001, 0x1F600):
        assert printable(chr(code)) == app.printable(chr(code), keep="\n\t")
