"""The cluster of docker-compose.yml on a real Docker engine."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from deploy.engines import batched

from ..support.named_strategies import CLIENTS as CLIENTS_WITH_GROUPS
from ..support.named_strategies import (
    LATER,
    SEED,
    SELECTORS,
    SETTINGS,
    argument,
    check_history,
    check_private_groups,
    histories_below,
    rounds_of,
)

ROOT = Path(__file__).parents[2]
CLIENTS = 3
ROUNDS = 150  # of about a quarter of a second; a killed client is back after ten seconds
PATIENCE = 600.0  # seconds, on a machine that may be busy
LOOK = 0.5  # seconds between two checks


def why_not():
    """Return why Docker is not available, None if it is."""
    if shutil.which("docker") is None:
        return "the program `docker` is not installed"
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"`{' '.join(command)}` says: {(done.stderr or done.stdout).strip()}"
    return None


pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", autouse=True)
def docker():
    if reason := why_not():
        pytest.skip(f"no Docker engine: {reason}")


class Compose:
    """A cluster with its own name and settings, independent of the caller's `.env`, of one or more files."""

    def __init__(self, *files, **settings):
        self.files = [part for file in files for part in ("--file", file)]
        self.project = f"cohort-test-{uuid.uuid4().hex[:8]}"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("COHORT_")}
        self.environment = {**kept, **settings}

    def __call__(self, *arguments, check=True):
        """Run `docker compose` with these arguments."""
        options = [*self.files, "--env-file", os.devnull, "--project-name", self.project]
        command = ["docker", "compose", *options, *arguments]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{' '.join(command)}\n{done.stdout}"
        return done

    def containers(self, service):
        return self("ps", "--all", "--quiet", service).stdout.split()

    def logs(self, *services):
        return self("logs", "--no-color", "--no-log-prefix", *services).stdout

    def history(self):
        """Return what the only training has written so far."""
        done = self("exec", "-T", "setup", "sh", "-c", "cat /volumes/results/*/*/history.jsonl", check=False)
        lines = done.stdout.splitlines(keepends=True) if done.returncode == 0 else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rounds(self):
        return [line for line in self.history() if line["type"] == "round"]

    def state(self):
        return f"{self('ps', '--all').stdout}\n{self.logs()}"

    def wait_for(self, condition, what):
        """Wait until it holds; fail when that takes too long, or cannot come since the run is over."""
        end = time.monotonic() + PATIENCE
        over = False
        while not condition():
            if over or time.monotonic() > end:
                reason = "the run is over" if over else f"not within {PATIENCE:g} s"
                pytest.fail(f"{what}: {reason}\n{self.state()}")
            over = bool(self("ps", "--quiet", "--status", "exited", "run").stdout)
            time.sleep(LOOK)

    def remove(self):
        self("down", "--volumes", "--timeout", "5", "--remove-orphans")


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def lines_of(text, start):
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]


def left_of(project):
    label = f"label=com.docker.compose.project={project}"
    kinds = (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
    return "".join(output_of("docker", *kind, "--quiet", "--filter", label) for kind in kinds)


@pytest.fixture
def compose():
    compose = Compose(COHORT_CLIENTS=str(CLIENTS), COHORT_PER_ROUND=str(CLIENTS), COHORT_SELECTOR="uniform")
    try:
        yield compose
    finally:
        compose.remove()


def can_reach(container, host, port):
    code = f"import socket; socket.create_connection(({host!r}, {port}), timeout=3)"
    done = subprocess.run(
        ["docker", "exec", container, "python", "-c", code], capture_output=True, check=False
    )
    return done.returncode == 0


def shell(container, command):
    return output_of("docker", "exec", container, "sh", "-c", command)


def asked_control(container):
    """Return the HTTP status of a request from this container to register a key."""
    code = (
        "import http.client, ssl; "
        "c = http.client.HTTPSConnection('control', 8000, context=ssl._create_unverified_context()); "
        "c.request('POST', '/v1/control/register-node', headers={'content-type': 'application/protobuf'}); "
        "print(c.getresponse().status)"
    )
    return output_of("docker", "exec", container, "python", "-c", code)


def test_a_run_survives_a_killed_client_and_a_restarted_superlink_and_keys_are_kept(compose, tmp_path):
    compose.environment |= {"COHORT_ROUNDS": str(ROUNDS), "COHORT_SET": "round-deadline=20"}
    compose("up", "--build", "--detach")
    clients = compose.containers("client")
    (run,) = compose.containers("run")
    (superlink,) = compose.containers("superlink")
    assert len(clients) == CLIENTS

    def name_of(container):
        return lines_of(output_of("docker", "logs", container), "cohort: this is ")

    compose.wait_for(lambda: all(map(name_of, clients)), "every container is a client")
    assert sorted(name for each in clients for name in name_of(each)) == [
        "client-00",
        "client-01",
        "client-02",
    ]

    # Clients reach the Fleet API, but under no address the API for runs and keys.
    assert can_reach(clients[0], "superlink", 9092)
    networks = json.loads(output_of("docker", "inspect", superlink))[0]["NetworkSettings"]["Networks"]
    for address in ("superlink", "control", *(network["IPAddress"] for network in networks.values())):
        assert not can_reach(clients[0], address, 8000), address
    assert can_reach(run, "control", 8000)
    # Each client has its own key and nobody else's; the ServerApp has no secret but its executor's.
    own = [shell(each, "grep -rl 'PRIVATE KEY' /volumes /tmp") for each in clients]
    assert all(path.startswith("/tmp/") and path.endswith("/key") for path in own), own
    assert len({shell(each, f"cat {path}") for each, path in zip(clients, own, strict=True)}) == CLIENTS
    assert shell(clients[0], "touch /volumes/leases/client-99 2>&1 || true").endswith("Read-only file system")
    (serverapp,) = compose.containers("serverapp")
    assert shell(serverapp, "grep -rl 'PRIVATE KEY' /volumes || true") == ""
    assert shell(serverapp, "find /volumes -name secret") == "/volumes/executor/private/secret"
    assert asked_control(serverapp) == "401"

    compose.wait_for(lambda: len(compose.rounds()) > 2, "two rounds")
    before = compose.rounds()[-1]["round"]
    output_of("docker", "kill", clients[0])
    (victim,) = name_of(clients[0])
    compose.wait_for(
        lambda: any(
            victim in line["client_ids"] and line["failures"] for line in compose.rounds()[before + 1 :]
        ),
        "a round without the killed client",
    )
    before = compose.rounds()[-1]["round"]
    compose("restart", "superlink")
    compose.wait_for(
        lambda: compose.rounds()[-1]["round"] > before + 1, "rounds after the SuperLink's restart"
    )
    # The container is the same client as before.
    before = compose.rounds()[-1]["round"]
    output_of("docker", "start", clients[0])
    compose.wait_for(
        lambda: any(
            dict(zip(line["client_ids"], line["responded"], strict=True)).get(victim)
            for line in compose.rounds()[before + 1 :]
        ),
        "the client's return",
    )
    assert name_of(clients[0]) == [victim, victim]

    assert output_of("docker", "wait", run) == "0", compose.state()
    output_of("docker", "cp", f"{run}:/volumes/results", str(tmp_path))
    (history,) = (tmp_path / "results").glob("*/uniform/history.jsonl")
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [line["type"] for line in lines].count("run") == 1
    assert lines[-1]["type"] == "end"
    rounds = [line for line in lines if line["type"] == "round"]
    assert [line["round"] for line in rounds] == list(range(ROUNDS + 1))
    assert {failure["client"] for line in rounds for failure in line.get("failures", ())} >= {victim}
    assert rounds[-1]["test_loss"] < rounds[0]["test_loss"] / 2
    model = load_file(history.with_name("model.safetensors"))
    assert sum(array.size for array in model.values()) == 65 * 10
    assert all(array.any() for array in model.values())
    assert (history.parent.parent / "cohort.png").read_bytes().startswith(b"\x89PNG")
    log = compose.logs("run")
    assert all(log.count(f"[ROUND {round}/{ROUNDS}]") == 1 for round in range(1, ROUNDS + 1)), log

    def keys():
        mount = f"{compose.project}_public:/public:ro"
        image = ("--entrypoint", "sh", "cohort-client:slim", "-c", "cat /public/*")
        return output_of("docker", "run", "--rm", "--volume", mount, *image)

    compose("down", "--timeout", "5")
    before_second = keys()
    assert before_second.count("ecdsa-sha2-nistp256") == CLIENTS
    compose.environment |= {"COHORT_ROUNDS": "1"}
    done = compose("up", "--exit-code-from", "run", "--timeout", "5", check=False)
    assert done.returncode == 0, done.stdout
    assert "cohort: 0 keys registered" in done.stdout
    assert keys() == before_second

    compose.remove()
    assert left_of(compose.project) == ""


def test_clients_train_on_mounted_data_and_a_device_joins_from_outside(compose, tmp_path):
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (200, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, 200)
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    np.savez(tmp_path / "own.npz", inputs=images.reshape(200, -1) / 255, labels=labels)
    compose.environment |= {"COHORT_TASK": "mnist", "COHORT_DATA": str(tmp_path / "data")}
    compose.environment |= {"COHORT_ROUNDS": "1000", "COHORT_SET": "round-deadline=60"}
    compose("up", "--build", "--detach")
    compose("cp", "setup:/volumes/public/ca.crt", str(tmp_path))
    address = compose("port", "superlink", "9092").stdout.strip()
    log = tmp_path / "log"
    join = [Path(sys.executable).with_name("cohort"), "client", "join", "--state-dir", str(tmp_path / "pi-1")]
    with log.open("w") as output:
        device = subprocess.Popen(
            [*join, "--server", address, "--ca", str(tmp_path / "ca.crt"), "--name", "pi-1",
             "--data", str(tmp_path / "own.npz")],
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        compose.wait_for(lambda: "not let in yet" in log.read_text(), "the device's first attempt")
        (line,) = [line for line in log.read_text().splitlines() if "cohort server register" in line]
        devices = ("exec", "-T", "superlink", "python", "-m", "deploy.container", "devices")
        compose(*devices, "register", *line.split()[3:])
        compose.wait_for(lambda: "online as pi-1" in log.read_text(), "the device online")
        assert compose(*devices, "list").stdout.split() == ["pi-1", "online"]
        compose.wait_for(
            lambda: any(
                dict(zip(line["client_ids"], line["responded"], strict=True)).get("pi-1")
                for line in compose.rounds()[1:]
            ),
            "a round with the device",
        )
        compose(*devices, "revoke", "pi-1")
        compose.wait_for(lambda: "sent away by the server" in log.read_text(), "the device sent away")
    finally:
        device.terminate()
        device.wait()
    before = len(compose.rounds())
    compose.wait_for(lambda: len(compose.rounds()) > before, "rounds without the device")


def test_the_strategies_of_the_papers_train_one_after_another_on_clients_with_groups(compose, tmp_path):
    """Each container has a group and an energy that it reports, and a group that it does not disclose."""
    open_, private, energies = ("day", "night", "dusk"), ("elders", "juniors"), (1.0, 2.0, 4.0)
    rounds, shares = 2, "day:2/night:1/dusk:1"
    selectors = {name: SELECTORS[name] for name in ("adaptive-osmd", "pow-d")} | {
        "flics": f"group-shares={shares},energy-budgets=day:1/night:3/dusk:8,min-shares=night:0.3",
        "flics-private": "group-shares=elders:1/juniors:3,epsilon=50",
    }
    compose.environment |= {
        "COHORT_CLIENTS": str(CLIENTS_WITH_GROUPS),
        "COHORT_ROUNDS": str(rounds),
        "COHORT_PER_ROUND": str(LATER),
        "COHORT_SEED": str(SEED),
        "COHORT_SELECTOR": " ".join(argument(name, given) for name, given in selectors.items()),
        "COHORT_GROUPS": " ".join(open_),
        "COHORT_PRIVATE_GROUPS": " ".join(private),
        "COHORT_ENERGIES": " ".join(map(str, energies)),
        "COHORT_SET": " ".join(f"{key}={value}" for key, value in SETTINGS.items())
        + " shortest-deadline=120",
    }
    done = compose("up", "--build", "--exit-code-from", "run", "--timeout", "5", check=False)
    assert done.returncode == 0, done.stdout
    compose("cp", "run:/volumes/results", str(tmp_path))
    histories = histories_below(tmp_path)
    assert histories.keys() == selectors.keys()

    names = [f"client-{number:02d}" for number in range(CLIENTS_WITH_GROUPS)]
    declared = {
        "groups": {name: open_[number % 3] for number, name in enumerate(names)},
        "energies": {name: energies[number % 3] for number, name in enumerate(names)},
    }
    (tmp_path / "declared.json").write_text(json.dumps(declared))
    for name, lines in histories.items():
        check_history(lines, rounds, open_)
        assert lines[2]["client_groups"] == list(declared["groups"].values())
        if name == "flics-private":  # its clients decide with secrets of their own
            continue
        batched.run(
            {
                **SETTINGS,
                "selector": name,
                "selector-settings": selectors[name].replace(",", " "),
                "client-settings": str(tmp_path / "declared.json") if name == "flics" else "",
                "num-clients": CLIENTS_WITH_GROUPS,
                "num-rounds": rounds,
                "clients-per-round": LATER,
                "seed": SEED,
                "output-dir": str(tmp_path / "simulated" / name),
            }
        )
        simulated = histories_below(tmp_path / "simulated" / name)[name]
        for one, other in zip(rounds_of(simulated), rounds_of(lines), strict=True):
            assert one.get("client_ids") == other.get("client_ids")
            np.testing.assert_allclose(one["test_loss"], other["test_loss"], rtol=1e-4)
    hidden = {name: private[number % 2] for number, name in enumerate(names)}
    shares_of = {"elders": 1.0, "juniors": 3.0}
    check_private_groups(histories["flics-private"], histories["pow-d"], hidden, shares_of)
    text = json.dumps(histories["flics-private"][1:-1])  # the last line has the folder, and so the settings
    assert not any(group in text for group in private)


def test_the_commands_of_the_guides_run_as_they_stand(tmp_path):
    """In the order of the guides, from a folder elsewhere, with few rounds; `exec` may come too early."""
    compose = Compose(COMPOSE_FILE=str(ROOT / "docker-compose.yml"), COHORT_ROUNDS="2")
    compose.environment["COMPOSE_PROJECT_NAME"] = compose.project
    pages = [(ROOT / "docs" / name).read_text("utf-8") for name in ("containers.md", "page.md")]
    blocks = re.findall(r"^```(?:console)?\n(.*?)^```$", "".join(pages), re.DOTALL | re.MULTILINE)
    lines = [line.partition("   #")[0] for block in blocks for line in block.splitlines()]
    commands = [line.strip() for line in lines if "docker compose " in line]
    assert len(commands) == 9
    said = {}

    def succeeds(command):
        options = {"cwd": tmp_path, "env": compose.environment, "capture_output": True, "text": True}
        done = subprocess.run(["bash", "-c", command], timeout=PATIENCE, check=False, **options)
        said[command] = done.stdout
        assert done.returncode == 0 or " exec " in command, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.returncode == 0

    try:
        for command in commands:
            compose.wait_for(partial(succeeds, command), command)
    finally:
        compose.remove()
    (history,) = (tmp_path / "results").glob("*/*/history.jsonl")
    assert json.loads(history.read_text().splitlines()[-1])["type"] == "end"
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", said["docker compose port page 9094"])
    assert len(said["docker compose exec page cat /volumes/page/secret"].strip()) > 20


def test_a_wrong_setting_is_refused_before_anything_else_starts(compose):
    compose.environment["COHORT_PER_ROUND"] = "99"
    done = compose("up", "--build", "--exit-code-from", "run", check=False)
    assert done.returncode != 0
    assert "COHORT_PER_ROUND = 99: must be between 1 and 3 (the number of clients)" in compose.logs("setup")
    started = '{{if ne .State.StartedAt "0001-01-01T00:00:00Z"}}started{{end}}'
    for service in ("superlink", "serverapp", "client", "run"):
        for container in compose.containers(service):
            assert output_of("docker", "inspect", "--format", started, container) == "", service


def test_the_images_have_no_secrets_no_build_tools_and_no_root_user():
    compose = Compose()
    compose("build")
    for image in ("cohort-client:slim", "cohort-server:slim"):
        inspected = json.loads(output_of("docker", "inspect", image))[0]
        assert inspected["Config"]["User"] == "10001:10001"
        run = ("docker", "run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c")
        assert output_of(*run, "id -u") == "10001"
        secrets = "find /volumes -type f; grep -rl -e '-----BEGIN .*PRIVATE KEY' /app /opt /volumes || true"
        # Two libraries and this project contain these words in their code, but no key.
        assert all(path.endswith((".py", ".pyc", ".so")) for path in output_of(*run, secrets).splitlines())
        assert output_of(*run, "for each in gcc cc make uv git; do command -v $each || true; done") == ""
    without = (
        "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ('torch', 'matplotlib', 'scipy'))))"
    )
    output_of("docker", "run", "--rm", "--entrypoint", "python", "cohort-client:slim", "-c", without)


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose 1 is not installed")
def test_docker_compose_1_understands_the_file():
    done = subprocess.run(["docker-compose", "config"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
