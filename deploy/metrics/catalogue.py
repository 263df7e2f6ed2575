"""The list of all metrics; docs/reference/metrics.md shows it."""

from typing import Literal, NamedTuple

from strategies.reporters.prometheus import COUNTERS, GAUGES


class Metric(NamedTuple):
    """The kind of a metric, its description, and the names of its labels."""

    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


_RUN = ("run",)
# The numbers of a run that the library's reporter offers too, under the same names.
_OF_REPORTER = {f"cohort_{name}_total": Metric("counter", text, _RUN) for name, text in COUNTERS.items()} | {
    f"cohort_{name}": Metric("gauge", text, _RUN) for name, text in GAUGES.items()
}
METRICS: dict[str, Metric] = {
    # The server.
    "cohort_superlink_up": Metric("gauge", "1 if the SuperLink answers the operator and devices, else 0"),
    "cohort_program_starts_total": Metric(
        "counter", "Starts of a program of the server: the first start and all restarts", ("program",)
    ),
    "cohort_nodes": Metric(
        "gauge", "Nodes by state: registered (not online yet), online or offline", ("state",)
    ),
    "cohort_metrics_start_time_seconds": Metric(
        "gauge", "When these metrics began; counters of runs count from here (Unix time)"
    ),
    "cohort_unreadable_histories": Metric("gauge", "Histories that cannot be read"),
    # A run.
    **_OF_REPORTER,
    "cohort_run_info": Metric(
        "gauge", "Always 1; the labels describe the run", ("run", "selector", "task", "seed")
    ),
    "cohort_run_state": Metric(
        "gauge",
        "1 for the state of the run, else 0: running, interrupted, finished, stopped or failed",
        ("run", "state"),
    ),
    "cohort_run_starts_total": Metric("counter", "Starts and resumes of the run", _RUN),
    "cohort_last_round_timestamp_seconds": Metric(
        "gauge", "When the history was last written (Unix time)", _RUN
    ),
    "cohort_phase_seconds_total": Metric(
        "counter", "Seconds of all rounds by phase: poll, train or aggregate", ("run", "phase")
    ),
    "cohort_known_clients": Metric(
        "gauge", "Known clients: clients that have an index in the run, also after their removal", _RUN
    ),
    "cohort_silent_clients": Metric(
        "gauge",
        "Those of cohort_quarantined_clients that are in quarantine for silence or errors",
        _RUN,
    ),
    "cohort_sent_messages_total": Metric("counter", "Messages to clients", _RUN),
    "cohort_received_messages_total": Metric("counter", "Messages from clients", _RUN),
    "cohort_test_loss": Metric("gauge", "Loss of the model on the test data of the server", _RUN),
    "cohort_test_accuracy_ratio": Metric(
        "gauge", "Accuracy of the model on the test data of the server, 0 to 1", _RUN
    ),
    "cohort_group_loss": Metric("gauge", "Loss of the model on the data of a group", ("run", "group")),
    "cohort_group_accuracy_ratio": Metric(
        "gauge", "Accuracy of the model on the data of a group, 0 to 1", ("run", "group")
    ),
    "cohort_left_out_groups": Metric("gauge", "Groups without metrics here, since there are too many", _RUN),
    "cohort_checkpoint_timestamp_seconds": Metric(
        "gauge", "When the last checkpoint was saved (Unix time); its age is time() minus this", _RUN
    ),
}
