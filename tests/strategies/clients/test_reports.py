"""What clients say of themselves: written on one side, checked on the other."""

import tracemalloc

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from strategies.clients.reports import Report
from strategies.flower.messages import read_report, write_report

from ...support.toy_grid import ToyGrid

FULL = Report(
    client_id="hospital-3",
    group="north",
    num_examples=120,
    num_steps=5,
    learning_rate=0.5,
    train_loss=-0.25,
    loss=1.5,
    gradient_variance=2.5,
    update_norm=0.75,
    accepts=False,
    available=False,
)


@pytest.mark.parametrize("report", [FULL, Report(), Report(group=3), Report(group="3"), Report(accepts=True)])
def test_a_written_checkpoint_is_read(report):
    ToyGrid({})
    assert read_report(write_report(report)) == report


def test_numbers_go_into_a_metric_record_and_names_into_a_config_record():
    content = write_report(FULL)
    assert dict(content.config_records["identity"]) == {"client-id": "hospital-3", "group": "north"}
    assert dict(content.metric_records["metrics"]) == {
        "num-examples": 120,
        "num-steps": 5,
        "learning-rate": 0.5,
        "train-loss": -0.25,
        "loss": 1.5,
        "gradient-variance": 2.5,
        "update-norm": 0.75,
        "accepts": 0,
        "available": 0,
    }
    assert list(write_report(Report(num_steps=1))) == ["metrics"]


def test_a_foreign_client_may_report_its_data_size_only():
    content = RecordDict({"m": MetricRecord({"num-examples": 7, "f1": 0.5, "per-class": [1.0, 2.0]})})
    assert read_report(content) == Report(num_examples=7)


def test_underscores_in_the_two_names_of_foreign_apps_are_read():
    other = {"num_examples": 7, "train_loss": 0.5}
    read = [
        read_report(RecordDict({"m": MetricRecord(each)})) for each in (other, {"num-examples": 8, **other})
    ]
    assert read == [Report(num_examples=7, train_loss=0.5), Report(num_examples=8, train_loss=0.5)]
    assert read_report(RecordDict({"m": MetricRecord(other | {"n": 9})}), "n").num_examples == 9


WRONG = [
    ("client-id", ""),
    ("client-id", "x" * 129),
    ("client-id", 5),
    ("client-id", "client-1 "),
    ("client-id", "client\x1b[2J"),
    ("client-id", "cl\u0456ent-1"),
    ("group", "north\u202e"),
    ("num-steps", 10**13),
    ("group", ""),
    ("group", "x" * 129),
    ("group", 1.5),
    ("group", True),
    ("group", [1]),
    ("num-steps", 0),
    ("num-steps", 2.5),
    ("learning-rate", 0.0),
    ("learning-rate", -1.0),
    ("train-loss", float("nan")),
    ("loss", float("inf")),
    ("loss", "low"),
    ("gradient-variance", -1e-9),
    ("gradient-variance", float("inf")),
    ("update-norm", -1.0),
    ("update-norm", float("nan")),
    ("accepts", 2),
    ("available", 0.5),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_an_invalid_field_is_dropped_and_the_others_are_read(name, value):
    said = {"num-examples": 3, "train-loss": 0.5, name: value}
    expected = {"num_examples": 3, "train_loss": 0.5}
    expected.pop(name.replace("-", "_"), None)
    assert Report.parse(said) == Report(**expected)


def test_the_names_of_pythons_attributes_are_no_fields():
    assert Report.parse({"num_examples": 5.0, "client_id": "a", "train_loss": "x"}) == Report()


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (0, "greater than 0"),
        (-1, "greater than 0"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (1e13, "less than or equal to 1"),
        ("many", "a valid number"),
        ([3], "a valid number"),
    ],
)
def test_a_wrong_size_is_reported(size, why):
    with pytest.raises(ValueError, match=f"num-examples = .*{why}"):
        Report.parse({"num-examples": size, "group": 1.5})


@given(
    st.dictionaries(
        st.sampled_from([field.alias or "" for field in Report.model_fields.values()]),
        st.one_of(
            st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.lists(st.floats()), st.binary()
        ),
    )
)
def test_any_report_is_read_or_refused_for_its_size(said):
    size = said.get("num-examples", 1)
    try:
        right = 0 < float(size) <= 1e12
    except (TypeError, ValueError, OverflowError):
        right = False
    if not right:
        with pytest.raises(ValueError, match=r"^num-examples = "):
            Report.parse(said)
        return
    report = Report.parse(said)
    assert Report.parse({**report.metrics(), **report.identity()}) == report


def test_a_config_record_may_hold_any_field():
    content = RecordDict({"c": ConfigRecord({"client-id": "a", "num-examples": 4, "group": 2})})
    assert read_report(content) == Report(client_id="a", num_examples=4, group=2)


def test_properties_take_little_room_in_a_checkpoint():
    """Without a limit, those of each client took up to 1.6 MB in every checkpoint."""
    text = "\U0001f600" * 128  # 12 bytes a character as JSON
    for count, read in ((5, True), (6, False)):
        properties = {"tags": [text] * count}
        report = Report.parse({"properties": properties, "num-examples": 3})
        assert report == Report(num_examples=3, properties=properties if read else None)


def test_a_great_many_wrong_properties_are_refused_unread():
    """When each of them was checked, those of one message took 6 s and 800 MB."""
    wrong = {f"\x1b{number}": [1] * 32 for number in range(10_000)}
    record = RecordDict({"properties": ConfigRecord(wrong), "metrics": MetricRecord({"num-examples": 3})})
    tracemalloc.start()
    assert read_report(record) == Report(num_examples=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000
