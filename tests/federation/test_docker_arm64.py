"""The image of clients for linux/arm64, in a cluster of docker-compose.yml beside a native client."""

import os
import subprocess

import pytest

from ..support.userland import FOLDER, why_not
from .test_docker import ROOT, Compose, output_of
from .test_docker import why_not as why_no_docker

pytestmark = [pytest.mark.docker, pytest.mark.arm64]

ROUNDS = 4
IMAGE = "cohort-client:arm64"
# A second service of clients, with the image for the other kind of processor.
SERVICES = f"""
services:
  client:
    scale: 1
  client-arm64:
    extends: {{file: {ROOT}/docker-compose.yml, service: client}}
    build: !reset null
    image: {IMAGE}
    platform: linux/arm64
    scale: 1
"""
# Folders of the userland that are not part of an image.
LEFT_OUT = ("opt", "proc", "sys", "dev", "tmp", "var/cache/apt", "var/lib/apt/lists")
BASE = """
FROM scratch
ADD files.tar /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
RUN mkdir -m 1777 -p /tmp && python3 -m venv /usr/local
"""


def build(folder, tag, *options):
    """Build an image for linux/arm64."""
    command = ["docker", "build", "--platform", "linux/arm64", "--network", "host", "--tag", tag, *options]
    done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return the base image for linux/arm64: COHORT_ARM64_PYTHON, or one made of the userland."""
    if named := os.environ.get("COHORT_ARM64_PYTHON"):
        return named
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("base")
    skipped = [f"--exclude=./{each}" for each in LEFT_OUT]
    files = str(folder / "files.tar")
    subprocess.run(["tar", "-C", FOLDER, "--one-file-system", *skipped, "-cf", files, "."], check=True)
    (folder / "Dockerfile").write_text(BASE)
    build(folder, "cohort-python:arm64")
    return "cohort-python:arm64"


@pytest.fixture
def compose(tmp_path):
    if reason := why_no_docker():
        pytest.skip(f"no Docker engine: {reason}")
    (tmp_path / "arm64.yml").write_text(SERVICES)
    compose = Compose(
        COMPOSE_FILE=f"{ROOT}/docker-compose.yml:{tmp_path}/arm64.yml",
        COHORT_CLIENTS="2",
        COHORT_PER_ROUND="2",
        COHORT_SELECTOR="uniform",
        COHORT_ROUNDS=str(ROUNDS),
        # The emulator's own memory counts too. No deadline passes while an emulated program starts.
        COHORT_CLIENT_MEMORY="1g",
        COHORT_SET="status-deadline=300 join-deadline=600 round-deadline=300 shortest-deadline=60",
    )
    try:
        yield compose
    finally:
        compose.remove()


def test_a_client_in_an_image_for_arm64_trains_beside_another(base, compose):
    client = ("--file", "deploy/Dockerfile", "--target", "client-slim", "--build-arg", f"PYTHON={base}")
    build(ROOT, IMAGE, *client)
    assert output_of("docker", "image", "inspect", "--format", "{{.Architecture}}", IMAGE) == "arm64"
    compose("up", "--build", "--detach")
    (arm64,) = compose.containers("client-arm64")
    (native,) = compose.containers("client")
    machines = [output_of("docker", "exec", each, "uname", "-m") for each in (arm64, native)]
    assert machines[0] == "aarch64" != machines[1]
    (run,) = compose.containers("run")
    assert output_of("docker", "wait", run) == "0", compose.state()
    rounds = compose.rounds()[1:]
    assert [sorted(line["client_ids"]) for line in rounds] == [["client-00", "client-01"]] * ROUNDS
    assert all(all(line["responded"]) for line in rounds), rounds
