"""What another user of the server's machine can do: connect to the loopback ports, and be refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, CreateTaskRequest
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from deploy.engines.local_cluster import LocalCluster
from deploy.flower import commands
from deploy.tls import certificates

from ..deploy.engines.test_local_cluster import listening_ports

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks in /proc"),
]

# Sends requests (port, path, headers, body, bytes of padding), and tries to read files.
ATTACKER = dedent("""
    import encodings.idna, http.client, json, os, ssl, sys
    if os.geteuid() == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
    requests, files = json.load(sys.stdin)
    context = ssl._create_unverified_context()
    statuses, contents = [], {}
    for port, path, headers, body, padding in requests:
        for connect in (http.client.HTTPSConnection, http.client.HTTPConnection):
            secure = {"context": context} if connect is http.client.HTTPSConnection else {}
            connection = connect("127.0.0.1", port, timeout=60, **secure)
            content = bytes.fromhex(body) + b"x" * padding
            try:
                connection.request("POST", path, content,
                                   {"content-type": "application/protobuf", **headers})
                statuses.append(connection.getresponse().status)
            except (ssl.SSLError, http.client.RemoteDisconnected):
                if secure: continue  # a SuperNode serves its own machine without TLS
                statuses.append("closed")
            except (BrokenPipeError, ConnectionResetError):
                statuses.append("closed")  # before the content was read
            break
    for name in files:
        try:
            contents[name] = open(name, "rb").read().hex()
        except OSError:
            pass
    json.dump([statuses, contents], sys.stdout)
""")


def attack(requests, files=()):
    """Run the attacker: as another user, if this one may become another."""
    done = subprocess.run(
        [sys.executable, "-c", ATTACKER],
        input=json.dumps([requests, files]),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    statuses, contents = json.loads(done.stdout)
    return statuses, contents


def memory(pid):
    """Return the largest memory that a process has had, MB."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) / 1e3


def test_another_user_registers_nothing_runs_nothing_takes_no_task_and_reads_no_secret(tmp_path):
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # pytest's are 0700: here the server's own folder must be enough
    certificates.write_client_key(tmp_path / "mallory", "key")
    own_key = (tmp_path / "mallory" / "key.pub").read_bytes()
    with LocalCluster(tmp_path / "run", num_clients=1) as cluster:
        (client,) = cluster.client_processes
        superlink = cluster._superlink
        assert superlink is not None
        assert cluster.port is not None
        (runtime,) = listening_ports([client.pid])
        pki = tmp_path / "run" / "state" / "pki"
        secret = (pki / "control.secret").read_text()

        harmful = [
            ("/v1/control/register-node", RegisterNodeRequest(public_key=own_key)),
            ("/v1/control/start-run", StartRunRequest(fab=Fab(content=b"PK"))),
            ("/v1/runtime/acquire-task", AcquireTaskRequest(supported_task_types=["serverapp", "clientapp"])),
            ("/v1/runtime/create-task", CreateTaskRequest(type="clientapp")),
        ]
        wrong = {"authorization": "Bearer 00", "flwr-task-token": "00"}
        requests = [
            (port, path, headers, message.SerializeToString().hex(), 0)
            for port in (cluster.port, runtime)
            for path, message in harmful
            for headers in ({}, wrong)
        ]
        # Every route, with nobody's token. Those of a login say that there is none here.
        login = {"/v1/control/get-login-details", "/v1/control/get-auth-tokens"}
        routes = [path for _, path in PROTOBUF_REQUEST_TYPES if path not in login]
        requests += [(cluster.port, path, wrong, "", 0) for path in routes]
        private = [pki / "control.secret", pki / "server.key", pki.parent / "flwr" / "credentials.yaml"]
        private += [Path(f"/proc/{process.pid}/environ") for process in (superlink, client)]
        statuses, contents = attack(requests, list(map(str, private)))
        odd = [(*r[:3], s) for r, s in zip(requests, statuses, strict=True) if s not in (401, 403, 404)]
        assert odd == []
        if os.geteuid() == 0:
            assert contents == {}
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        assert not any(secret.encode() in command for command in commands)

        # Refused before it is read: it takes no memory.
        before = memory(superlink.pid), memory(client.pid)
        large = PushObjectRequest(object_content=b"x").SerializeToString().hex()
        attack([
            (port, path, wrong, large, 40_000_000)
            for port, path in (
                (cluster.port, "/v1/control/start-run"),
                (cluster.port, "/v1/control/get-login-details"),
                (cluster.port, "/v1/runtime/push-object"),
                (cluster.port, "/v1/runtime/acquire-task"),
                (runtime, "/v1/runtime/push-object"),
            )
        ])  # fmt: skip
        grown = [memory(process.pid) - was for process, was in zip((superlink, client), before, strict=True)]
        assert max(grown) < 20, grown

        # The owner of the secret is served, by the same request.
        nodes = ListNodesRequest().SerializeToString().hex()
        statuses, _ = attack(
            [(cluster.port, "/v1/control/list-nodes", {"authorization": f"Bearer {secret}"}, nodes, 0)]
        )
        assert statuses == [200]
        assert (tmp_path / "run" / "logs" / "superlink.log").read_text().count("Created node_id") == 1


def test_a_superlink_that_cannot_demand_the_secret_does_not_start(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("00")
    done = subprocess.run(
        [Path(sys.executable).parent / "flower-superlink", "--insecure"],  # the unpatched program
        env={**os.environ, **commands.guarded(secret), "FLWR_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "account authentication is unavailable" in done.stderr
