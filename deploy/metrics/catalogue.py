"""The list of all metrics. docs/metrics.md has the same list, and a test compares the two."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """The kind of a metric, its description, and the names of its labels."""

    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


_RUN = ("run",)
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
    "cohort_run_info": Metric(
        "gauge", "Always 1; the labels describe the run", ("run", "selector", "task", "seed")
    ),
    "cohort_run_state": Metric(
        "gauge",
        "1 for the state of the run, else 0: running, interrupted, finished, stopped or failed",
        ("run", "state"),
    ),
    "cohort_run_starts_total": Metric("counter", "Starts and resumes of the run", _RUN),
    "cohort_planned_rounds": Metric("gauge", "The last planned round", _RUN),
    "cohort_round": Metric("gauge", "The last completed round", _RUN),
    "cohort_last_round_timestamp_seconds": Metric(
        "gauge", "When the history was last written (Unix time)", _RUN
    ),
    "cohort_last_round_seconds": Metric("gauge", "Seconds of the last round", _RUN),
    "cohort_rounds_total": Metric("counter", "Completed rounds; rounds trained again count again", _RUN),
    "cohort_skipped_rounds_total": Metric("counter", "Rounds that left the model unchanged", _RUN),
    "cohort_round_seconds_total": Metric(
        "counter", "Seconds of all rounds, from the poll to the new model", _RUN
    ),
    "cohort_phase_seconds_total": Metric(
        "counter", "Seconds of all rounds by phase: poll, train or aggregate", ("run", "phase")
    ),
    # Clients.
    "cohort_known_clients": Metric(
        "gauge", "Known clients: clients that have an index in the run, also after their removal", _RUN
    ),
    "cohort_selectable_clients": Metric(
        "gauge", "Selectable clients of the last round: available, and neither quarantined nor resting", _RUN
    ),
    "cohort_quarantined_clients": Metric("gauge", "Clients that quarantine left out of the last round", _RUN),
    "cohort_silent_clients": Metric(
        "gauge",
        "Those of cohort_quarantined_clients that are in quarantine for silence or errors",
        _RUN,
    ),
    "cohort_selected_clients_total": Metric("counter", "Selected clients of all rounds", _RUN),
    "cohort_failed_clients_total": Metric(
        "counter", "Selected clients whose reply was missing or unusable", _RUN
    ),
    "cohort_clipped_clients_total": Metric("counter", "Selected clients with a clipped value", _RUN),
    # Traffic.
    "cohort_sent_messages_total": Metric("counter", "Messages to clients", _RUN),
    "cohort_sent_bytes_total": Metric("counter", "Bytes of arrays in messages to clients", _RUN),
    "cohort_received_messages_total": Metric("counter", "Messages from clients", _RUN),
    "cohort_received_bytes_total": Metric("counter", "Bytes of arrays in messages from clients", _RUN),
    # The model.
    "cohort_train_loss": Metric("gauge", "The clients' training loss in the last round", _RUN),
    "cohort_test_loss": Metric("gauge", "Loss of the model on the test data of the server", _RUN),
    "cohort_test_accuracy_ratio": Metric(
        "gauge", "Accuracy of the model on the test data of the server, 0 to 1", _RUN
    ),
    "cohort_group_loss": Metric("gauge", "Loss of the model on the data of a group", ("run", "group")),
    "cohort_group_accuracy_ratio": Metric(
        "gauge", "Accuracy of the model on the data of a group, 0 to 1", ("run", "group")
    ),
    "cohort_left_out_groups": Metric("gauge", "Groups without metrics here, since there are too many", _RUN),
    # Files.
    "cohort_checkpoint_timestamp_seconds": Metric(
        "gauge", "When the last checkpoint was saved (Unix time); its age is time() minus this", _RUN
    ),
}
