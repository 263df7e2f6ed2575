"""The dashboard names the metrics that there are."""

import json
import re
from pathlib import Path

from deploy.metrics.catalogue import METRICS

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "cohort.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
SELECTOR = re.compile(r"(\bcohort_\w+)(?:\{([^}]*)\})?")


def test_the_dashboard_uses_metrics_and_labels_that_exist():
    variables = [each["definition"] for each in DASHBOARD["templating"]["list"] if "definition" in each]
    found = [match for query in [*QUERIES, *variables] for match in SELECTOR.findall(query)]
    assert len({name for name, _ in found}) > 20
    for name, matchers in found:
        assert name in METRICS
        used = {matcher.partition("=")[0].rstrip("~!") for matcher in matchers.split(",") if matcher}
        assert used <= set(METRICS[name].labels), f"{name}{{{matchers}}}"
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            used = {label for name, _ in SELECTOR.findall(target["expr"]) for label in METRICS[name].labels}
            assert labels <= used, target


def test_the_dashboard_takes_the_rate_of_counters_only():
    for query in QUERIES:
        for name, _ in SELECTOR.findall(query):
            is_rate = re.search(rf"(rate|increase)\({name}\b", query) is not None
            assert is_rate == (METRICS[name].kind == "counter"), query


def test_panels_have_places_of_their_own():
    taken = set()
    for panel in DASHBOARD["panels"]:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        cells = {(x + i, y + j) for i in range(w) for j in range(h)}
        assert x + w <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
