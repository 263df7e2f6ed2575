"""Peers that speak HTTP/1.1 learn what is wrong."""

import os
import signal
import socket
import ssl
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.fleet.gate import http_answer
from deploy.processes.groups import Process, wait_until
from deploy.processes.ports import LOOPBACK, free_ports

ASKED = b"POST /v1/fleet/activate-node HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40000\r\n\r\n"


@pytest.mark.network
@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
def test_a_request_of_http_is_answered_and_other_bytes_are_not(superlink, tls):
    context = ssl.create_default_context(cafile=str(superlink.authority))
    for sent, answered in ((ASKED + bytes(40_000), True), (b"SSH-2.0-OpenSSH_9.2\r\n", False)):
        connection = socket.create_connection((LOOPBACK, superlink.port))
        connection.settimeout(30)
        if tls:
            connection = context.wrap_socket(connection, server_hostname=LOOPBACK)
        with connection:
            connection.sendall(sent)
            answer = b""
            with suppress(ConnectionError, ssl.SSLError):
                while part := connection.recv(65_536):
                    answer += part
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n") == answered
        assert (http_answer.REASON.encode() in answer) == answered
    assert wait_until(lambda: "Closed " in superlink.log, 10)


@pytest.mark.network
def test_flowers_own_supernode_says_what_to_do(superlink, tmp_path):
    (port,) = free_ports(1)
    program = Path(sys.executable).with_name("flower-supernode")
    command = [str(program), "--superlink", superlink.address, "--port", str(port)]
    command += ["--root-certificates", str(superlink.authority)]
    environment = os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",  # it starts flower-superexec
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    log = tmp_path / "log"
    process = Process(command, log, environment)
    try:
        assert wait_until(lambda: process.returncode is not None, 60), log.read_text()
        assert http_answer.REASON in log.read_text()
        assert process.returncode != 0
    finally:
        with suppress(ProcessLookupError):
            process.signal_group(signal.SIGKILL)
