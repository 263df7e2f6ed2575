import json

import pytest
from typer.testing import CliRunner

from benchmarks.command import bench
from benchmarks.models.measure import loopback


def test_the_loopback_takes_longer_for_more_bytes():
    assert 0 < min(loopback(1) for _ in range(3)) < min(loopback(200_000_000) for _ in range(3))


@pytest.mark.slow
@pytest.mark.network
def test_a_round_with_a_large_model_is_measured():
    options = ["models", "--megabytes", "8", "--nodes", "2", "--rounds", "1", "--no-stock", "--json"]
    result = CliRunner().invoke(bench, options)
    assert result.exit_code == 0, result.output
    whole, half = map(json.loads, result.stdout.splitlines())
    assert (whole["programs"], half["programs"]) == ("cohort", "cohort, half precision")
    for cost in (whole, half):
        assert cost["megabytes"] == 8
        assert cost["seconds"] > cost["loopback"] > 0
        assert cost["cpu"] > 0
    # Two replies are sent and averaged, so the programs grow by a model or more.
    assert whole["copies"]["flwr-serverapp"] > 1
