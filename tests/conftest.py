"""Settings of every test: hypothesis without a deadline and with the same examples in every run, one thread
per process for linear algebra, and Flower's logger as it was before the test. A lane such as
`-m "network and not slow"` imports only the files that name its marker."""

import logging
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

# Two pytest workers on two cores: more threads only wait for each other. Set before NumPy is imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from deploy.processes.watchdog import watchdog_command  # noqa: E402

MARK = "COHORT_TESTS"  # environment variable of all processes that tests start

# A busy machine is slow, not wrong. Every run tries the same examples.
settings.register_profile(
    "cohort", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# For other versions of Python and Flower, which run the same formulas: `--hypothesis-profile few`.
settings.register_profile("few", settings.get_profile("cohort"), max_examples=20)
settings.load_profile("cohort")


def pytest_configure():
    """Start a watchdog: servers and devices outlive the process that starts them, and so a killed pytest."""
    if sys.platform == "linux" and MARK not in os.environ:  # workers and nested runs inherit the mark
        os.environ[MARK] = str(os.getpid())
        command = watchdog_command(MARK, os.environ[MARK], Path(tempfile.mkdtemp(prefix="cohort-tests-")))
        os.posix_spawn(command[0], command, os.environ, setsid=True)


@pytest.fixture(autouse=True)
def _flowers_log_level():
    """Undo what a test does to Flower's logger: the simulated engines raise its level; `caplog` needs its
    propagation."""
    logger = logging.getLogger("flwr")
    level, logger.propagate = logger.level, True
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL of this worker's tests, if it is installed."""
    from tests.support.postgres import Postgres  # skips the test without psycopg

    running = Postgres()
    yield running
    running.end()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request, tmp_path):
    """The path or the address of a new database, of each kind in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "superlink.db")
    return request.getfixturevalue("postgres").database()


@cache
def _names(path, marker):
    """Tell whether the text of a file names a marker."""
    return f"mark.{marker}" in path.read_text()


def pytest_ignore_collect(collection_path, config):
    """Leave out the files that do not name all markers which `-m` asks for."""
    needed = config.option.markexpr.split(" and ")
    if collection_path.suffix != ".py" or " or " in config.option.markexpr:
        return None
    return not all(_names(collection_path, each) for each in needed if each.isidentifier()) or None


@pytest.hookimpl(tryfirst=True)  # before tests are deselected
def pytest_collection_modifyitems(config, items):
    """Refuse a marker that the file of its test does not name: the marker's lane would leave the test out."""
    lanes = {line.partition(":")[0] for line in config.getini("markers")} - {"hypothesis"}
    for item in items:
        for marker in lanes & {each.name for each in item.iter_markers()}:
            if not _names(item.path, marker):
                raise pytest.UsageError(f"{item.nodeid}: its file must name its marker, pytest.mark.{marker}")
