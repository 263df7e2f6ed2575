"""What a peer may send before it has confirmed gRPC's settings."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.fleet.gate.settings_check import MOST, NotAllowedError, SettingsCheck

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 1, 4, 6, 8, 9


def frame(kind, content=b"", flags=0):
    return struct.pack("!I", len(content))[1:] + struct.pack("!BBI", kind, flags, 0) + content


BEFORE = (
    PREFACE + frame(SETTINGS, b"\0\3\0\0\0\x64") + frame(WINDOW_UPDATE, b"\0\1\0\0") + frame(PING, bytes(8))
)
CONFIRMED = frame(SETTINGS, flags=1)
AFTER = frame(HEADERS, b"\x93" * 50)


@given(st.lists(st.integers(0, len(BEFORE + CONFIRMED + AFTER)), max_size=8))
def test_all_that_grpc_sends_passes_however_it_is_cut(cuts):
    data = BEFORE + CONFIRMED + AFTER
    places = [0, *sorted(cuts), len(data)]
    check = SettingsCheck()
    passed = b""
    for begin, end in pairwise(places):
        passed += check.allowed(data[begin:end])
        assert check.confirmed == (end >= len(BEFORE + CONFIRMED))
    assert passed == data


@pytest.mark.parametrize("kind", [HEADERS, CONTINUATION, 0, 2, 3, 5, 7, 255])
def test_nothing_of_a_request_passes_before_the_settings_are_confirmed(kind):
    check = SettingsCheck()
    assert check.allowed(BEFORE) == BEFORE
    with pytest.raises(NotAllowedError, match="before it had confirmed the settings"):
        check.allowed(frame(kind, b"\x93"))


def test_a_peer_cannot_send_much_before_the_settings_are_confirmed():
    check = SettingsCheck()
    assert check.allowed(PREFACE) == PREFACE
    ping = frame(PING, bytes(8))
    for _ in range((MOST - len(PREFACE)) // len(ping)):
        assert check.allowed(ping) == ping
    with pytest.raises(NotAllowedError, match=f"more than {MOST} bytes"):
        check.allowed(ping)
    with pytest.raises(NotAllowedError, match=f"more than {MOST} bytes"):  # the frame's end never comes
        SettingsCheck().allowed(PREFACE + struct.pack("!I", 2**24 - 1)[1:] + b"\4\0\0\0\0\0" + bytes(MOST))


@given(st.binary(max_size=200))
def test_bytes_that_do_not_confirm_the_settings_open_no_way(data):
    for start in (b"", PREFACE):
        check = SettingsCheck()
        try:
            passed = check.allowed(start + data)
        except NotAllowedError:
            continue
        assert check.confirmed == (CONFIRMED[3:5] in data and passed == start + data)
        assert len(passed) <= len(start + data)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nXX"])
def test_another_protocol_is_refused(data):
    with pytest.raises(NotAllowedError, match="HTTP/2"):
        SettingsCheck().allowed(data)
