"""The text is Prometheus's text format, whatever clients call themselves."""

import math
import os
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.metrics.catalogue import METRICS
from deploy.metrics.exposition import Sample, exposition

from .samples import GROUP, append, collector_of, roster, round_line, run_line

HOSTILE = [GROUP, 'a"} 1\ncohort_round{run="b', "\\", "", "\u202edrawkcab", "\ud800", "x" * 10_000]


@pytest.mark.parametrize("label", HOSTILE)
def test_text_of_clients_stays_in_its_label(label):
    text = exposition([Sample("cohort_group_loss", 0.5, ("run", label)), Sample("cohort_superlink_up", 1)])
    families = list(text_string_to_metric_families(text))
    assert [family.name for family in families] == ["cohort_superlink_up", "cohort_group_loss"]
    (sample,) = families[1].samples
    assert sample.labels["run"] == "run"
    assert len(sample.labels["group"]) <= 128
    assert sample.labels["group"].isprintable()
    assert sample.value == 0.5
    assert len(text.splitlines()) == 6


@pytest.mark.parametrize("value", [0, 3, 0.1, 1e300, 1.5e-7, math.inf, -math.inf, math.nan])
def test_numbers_are_read_again_as_they_were(value):
    text = exposition([Sample("cohort_superlink_up", value)])
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].value == pytest.approx(value, rel=0, nan_ok=True)


def test_a_sample_with_labels_that_are_already_there_replaces_the_first():
    text = exposition(Sample("cohort_nodes", value, ("online",)) for value in (1, 2))
    assert text.splitlines()[2:] == ['cohort_nodes{state="online"} 2']


def test_names_follow_the_conventions():
    for name, (kind, about, labels) in METRICS.items():
        assert name.startswith("cohort_")
        assert name.endswith("_total") == (kind == "counter"), name
        assert about[0].isupper() == about[0].isalpha(), name
        assert not about.endswith(".")
        assert not {"client", "client_id", "reason"} & set(labels), "labels must be bounded"


def everything(tmp_path):
    """Return the text of a server whose run had all that can happen; the SuperLink is made up."""
    collector = collector_of(tmp_path)
    collector.step()
    append(tmp_path / "a", run_line(), roster(), round_line(1))
    (tmp_path / "a" / "checkpoints").mkdir()
    (tmp_path / "a" / "checkpoints" / "round-00000001.npz").touch()
    collector.step()
    collector._readiness.nodes = {"online": 1, "offline": 0, "registered": 2}
    return collector.text()


def test_each_metric_of_the_list_is_there_with_its_type_and_labels(tmp_path):
    found = {}
    for family in text_string_to_metric_families(everything(tmp_path)):
        (labels,) = {tuple(sample.labels) for sample in family.samples}
        found[family.samples[0].name] = (family.type, family.documentation, labels)
    assert found == {name: tuple(metric) for name, metric in METRICS.items()}


def test_promtool_finds_nothing_to_complain_about(tmp_path):
    promtool = shutil.which("promtool", path=os.environ.get("COHORT_PROMTOOL", os.environ["PATH"]))
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=everything(tmp_path), text=True, capture_output=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
