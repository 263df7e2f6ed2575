"""Settings of every test: hypothesis without a deadline and with the same examples in every run, one thread
per process for linear algebra, and Flower's logger as it was before the test."""

import logging
import os
from collections.abc import Iterator

# Two pytest workers on two cores: more threads only wait for each other. Set before NumPy is imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# A busy machine is slow, not wrong. Every run tries the same examples.
settings.register_profile(
    "cohort", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# For other versions of Python and Flower, which run the same formulas: `--hypothesis-profile few`.
settings.register_profile("few", settings.get_profile("cohort"), max_examples=20)
settings.load_profile("cohort")


@pytest.fixture(autouse=True)
def _flowers_log_level() -> Iterator[None]:
    """Undo what a test does to the level of Flower's logger, which the simulated engines raise."""
    logger = logging.getLogger("flwr")
    level = logger.level
    yield
    logger.setLevel(level)
