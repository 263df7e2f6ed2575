"""The cluster of docker-compose.cluster.yml on a real Docker engine: every process is killed during a run."""

import json
import os
import subprocess

import pytest

from .test_docker import Compose, lines_of, output_of, shell, why_not

pytestmark = pytest.mark.docker

CLIENTS = 3
ROUNDS = 100
# Stands for the official images of PostgreSQL 17 and HAProxy 3.0 where there is no registry of images, with
# the same programs from Debian 13. The entry point makes the database as that of the official image does.
IMAGE = "cohort-test-database-and-balancer"
DOCKERFILE = """
FROM python:3.11-slim-bookworm
RUN cd /etc/apt/sources.list.d && for each in *; do sed 's/bookworm/trixie/g' "$each" > "trixie-$each"; done \
 && apt-get update && apt-get install -y --no-install-recommends haproxy postgresql-17 \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 cohort && install -d -m 1777 /var/lib/postgresql/data /var/run/postgresql
ENV PATH=/usr/lib/postgresql/17/bin:$PATH
COPY entry /entry
ENTRYPOINT ["sh", "/entry"]
"""
ENTRY = """
set -e
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --username "$POSTGRES_USER" --pwfile "$POSTGRES_PASSWORD_FILE" --auth trust
  sed -i "/^host/d" "$PGDATA/pg_hba.conf"
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
  pg_ctl -w start -o "-c listen_addresses=''"
  createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl -m fast -w stop
fi
exec "$@"
"""


@pytest.fixture(scope="module", autouse=True)
def docker():
    if reason := why_not():
        pytest.skip(f"no Docker engine: {reason}")


@pytest.fixture
def images(tmp_path):
    """Return the settings that name the images: those that the caller names, or else `IMAGE`."""
    names = ("COHORT_POSTGRES_IMAGE", "COHORT_HAPROXY_IMAGE")
    if all(name in os.environ for name in names):
        return {name: os.environ[name] for name in names}
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "entry").write_text(ENTRY)
    command = ["docker", "build", "--network", "host", "--tag", IMAGE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict.fromkeys(names, IMAGE)


@pytest.fixture
def compose(images):
    compose = Compose(
        *("docker-compose.yml", "docker-compose.cluster.yml"),
        **images,
        COHORT_CLIENTS=str(CLIENTS),
        COHORT_PER_ROUND=str(CLIENTS),
        COHORT_SELECTOR="uniform",
        COHORT_ROUNDS=str(ROUNDS),
        COHORT_SET="round-deadline=300 shortest-deadline=300",
    )
    try:
        yield compose
    finally:
        compose.remove()


def kill_and_wait(compose, container):
    """Kill all processes of a container, as the kernel does without memory, until Docker starts it again."""
    # After `docker kill`, which counts as a stop by the operator, Docker would not start it again.
    subprocess.run(["docker", "exec", container, "sh", "-c", "kill -9 -1"], check=False, capture_output=True)
    count = ("docker", "inspect", "--format", "{{.RestartCount}}", container)
    compose.wait_for(lambda: output_of(*count) == "1", f"Docker starts {container} again")


def wait_until_healthy(compose, container):
    health = ("docker", "inspect", "--format", "{{.State.Health.Status}}", container)
    compose.wait_for(lambda: output_of(*health) == "healthy", f"{container} is healthy")


PROBE = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def reached(address):
    try:
        socket.create_connection(address, timeout=3).close()
    except OSError:
        return None
    return address

with ThreadPoolExecutor(40) as pool:
    print(json.dumps([each for each in pool.map(reached, json.loads(sys.argv[1])) if each]))
"""


def check_what_can_be_reached_and_read(compose, client, containers):
    """Clients reach the Fleet API at the balancer, and nothing else. Few containers have the password."""
    everything = [each for some in containers.values() for each in some]
    inspected = output_of("docker", "inspect", *everything)
    found = {each["Id"]: each["NetworkSettings"]["Networks"] for each in json.loads(inspected)}
    behind = (*containers["superlink"], *containers["database"])
    addresses = [["superlink", 9092], ["control", 8000], ["database", 5432]]
    addresses += [
        [network["IPAddress"], port]
        for container in behind
        for network in found[container].values()
        for port in (8000, 9092, 5432)
    ]
    (balancer,) = containers["balancer"]
    addresses += [[network["IPAddress"], 8000] for network in found[balancer].values()]
    command = ("docker", "exec", client, "python", "-c", PROBE, json.dumps(addresses))
    assert json.loads(output_of(*command)) == [["superlink", 9092]]

    password = shell(containers["superlink"][0], "cat /volumes/database/private/password")
    assert len(password) == 64
    assert password not in inspected
    assert password not in compose("top").stdout
    for service in ("client", "serverapp", "run"):
        assert shell(containers[service][0], "ls /volumes/database") == ""


def test_every_process_is_killed_in_turn_and_the_run_ends_with_every_round_complete(compose, tmp_path):
    compose("up", "--build", "--detach")
    services = ("client", "superlink", "database", "balancer", "serverapp", "run")
    containers = {service: compose.containers(service) for service in services}
    client, (run,) = containers["client"][0], containers["run"]
    one, two = containers["superlink"]

    def reached():
        return max((line["round"] for line in compose.rounds()), default=-1)

    def wait_for_rounds(more):
        last = reached() + more
        compose.wait_for(lambda: reached() >= last, f"round {last}")

    wait_for_rounds(2)
    check_what_can_be_reached_and_read(compose, client, containers)

    for container in (one, *containers["database"], *containers["balancer"], *containers["serverapp"]):
        print(f"before round {reached() + 1}: {container[:12]} is killed")
        kill_and_wait(compose, container)
        wait_for_rounds(2)
    wait_until_healthy(compose, one)
    kill_and_wait(compose, two)
    wait_for_rounds(2)
    output_of("docker", "kill", run)
    output_of("docker", "start", run)
    wait_for_rounds(2)
    complete = reached()
    kill_and_wait(compose, client)
    assert reached() < ROUNDS, "the run was over before each process was killed"

    assert output_of("docker", "wait", run) == "0", compose.state()
    output_of("docker", "cp", f"{run}:/volumes/results", str(tmp_path))
    (history,) = (tmp_path / "results").glob("*/uniform/history.jsonl")
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert lines[-1]["type"] == "end"
    rounds = [line for line in lines if line["type"] == "round"]
    assert [line["round"] for line in rounds] == list(range(ROUNDS + 1))
    assert not any(line["skipped"] for line in rounds[1 : complete + 1])
    assert all(all(line["responded"]) for line in rounds[1 : complete + 1])
    (victim,) = set(lines_of(output_of("docker", "logs", client), "cohort: this is "))
    assert {failure["client"] for line in rounds for failure in line.get("failures", ())} <= {victim}
    assert rounds[-1]["test_loss"] < rounds[0]["test_loss"] / 2
