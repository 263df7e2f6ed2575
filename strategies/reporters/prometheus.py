"""A reporter that offers the numbers of the last round to a Prometheus server."""

import socket
from contextlib import suppress
from importlib import import_module
from math import isfinite
from threading import Thread, Timer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from .base import Reporter, RoundReport, RunInfo
from .scalars import groups, numbers

PATIENCE = 2.0  # seconds that a connection may take; the other connections wait meanwhile
COUNTERS = {
    "rounds": "Completed rounds; rounds trained again count again",
    "skipped_rounds": "Rounds that left the model unchanged",
    "round_seconds": "Seconds of all rounds, from the poll to the new model",
    "selected_clients": "Selected clients of all rounds",
    "failed_clients": "Selected clients whose reply was missing or unusable",
    "clipped_clients": "Selected clients with a clipped value",
    "sent_bytes": "Bytes of arrays in messages to clients",
    "received_bytes": "Bytes of arrays in messages from clients",
}
"""The counters, without "cohort_" before the name and "_total" behind it."""
GAUGES = {
    "round": "The last completed round",
    "planned_rounds": "The last planned round",
    "last_round_seconds": "Seconds of the last round",
    "selectable_clients": "Selectable clients of the last round: available, and neither "
    "quarantined nor resting",
    "quarantined_clients": "Clients that quarantine left out of the last round",
    "train_loss": "The clients' training loss in the last round",
}
"""The gauges, without "cohort_" before the name."""


class Prometheus(Reporter):
    """Serves ``http://ADDRESS:PORT/metrics`` while the run goes on. All names begin with ``cohort_``.

    The counters (rounds, seconds, selected clients, failures, clipped clients, bytes) begin at 0 when the run
    begins or resumes. The gauges show the last round. ``cohort_evaluation`` has the metrics of
    ``evaluate_fn``, with the label ``metric``. ``cohort_group`` has the metrics of groups, with the labels
    ``group`` and ``metric``.

    Parameters
    ----------
    port : int
        The port; 0 takes a free port.
    address : str (default: "127.0.0.1")
        The address to listen on. Every program that can reach this address can read the numbers. With the
        default, only programs on this machine can.

    Attributes
    ----------
    port : int
        The port on which the reporter listens, once the run has begun.
    """

    package = "prometheus_client"
    extra = "prometheus"

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.port, self.address = port, address
        self._require()
        self._prometheus: Any = import_module("prometheus_client")
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def begin(self, run: RunInfo) -> None:
        self._open(run)

    def resume(self, run: RunInfo, round: int) -> None:
        self._open(run)
        self._gauges["round"].set(round)

    def round(self, report: RoundReport) -> None:
        self._gauges["round"].set(report.round)
        self._set("evaluation", [((name,), value) for name, value in numbers(report.metrics)])
        self._set(
            "group",
            [
                ((group, name), value)
                for group, metrics in groups(report.group_metrics)
                for name, value in numbers(metrics)
            ],
        )
        if report.traffic is not None:
            self._counters["sent_bytes"].inc(report.traffic.bytes_sent)
            self._counters["received_bytes"].inc(report.traffic.bytes_received)
        if (record := report.record) is None:
            return
        self._gauges["selectable_clients"].set(record.num_available)
        self._gauges["quarantined_clients"].set(len(record.quarantined))
        self._gauges["train_loss"].set(record.train_loss)  # NaN if the round has none
        self._gauges["last_round_seconds"].set(record.seconds)
        self._counters["rounds"].inc()
        self._counters["skipped_rounds"].inc(bool(record.skipped))
        self._counters["round_seconds"].inc(record.seconds if isfinite(record.seconds) else 0)
        self._counters["selected_clients"].inc(len(record.selection.clients))
        self._counters["failed_clients"].inc(len(record.failures))
        self._counters["clipped_clients"].inc(len(record.clipped))

    def end(self, round: int, reason: str) -> None:
        self._close()

    def failed(self, round: int, reason: str) -> None:
        self._close()

    def _open(self, run: RunInfo) -> None:
        self._close()
        registry = self._prometheus.CollectorRegistry()
        self._counters = {
            name: self._prometheus.Counter(f"cohort_{name}", text, registry=registry)
            for name, text in COUNTERS.items()
        }
        self._gauges = {
            name: self._prometheus.Gauge(f"cohort_{name}", text, registry=registry)
            for name, text in GAUGES.items()
        }
        self._labelled = {
            "evaluation": self._prometheus.Gauge(
                "cohort_evaluation",
                "A metric of the model on the server's data",
                ["metric"],
                registry=registry,
            ),
            "group": self._prometheus.Gauge(
                "cohort_group", "A metric of the clients of a group", ["group", "metric"], registry=registry
            ),
        }
        self._gauges["planned_rounds"].set(run.num_rounds)
        app = self._prometheus.make_wsgi_app(registry)
        self._server = make_server(self.address, self.port, app, _server(self.address), _Handler)
        self._thread = Thread(target=self._server.serve_forever, name="prometheus", daemon=True)
        self._thread.start()
        self.port = self._server.server_port

    def _set(self, name: str, values: list[tuple[tuple[str, ...], float]]) -> None:
        gauge = self._labelled[name]
        gauge.clear()  # removes groups that are gone
        for labels, value in values:
            gauge.labels(*labels).set(value)

    def _close(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None


# prometheus_client's own server has a thread and a file for each connection, for as long as the connection
# exists: any program that can connect could use up the files and threads of the run.
class _Handler(WSGIRequestHandler):
    """Answers the request of one connection, and closes the connection after at most `PATIENCE` seconds."""

    def handle(self) -> None:
        late = Timer(PATIENCE, self._hang_up)
        late.daemon = True
        late.start()
        with suppress(OSError):  # the connection has ended
            super().handle()
        late.cancel()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def _server(address: str) -> type[WSGIServer]:
    class Server(WSGIServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def handle_error(self, *_: Any) -> None:
            """Print nothing: the other side has hung up, or has sent nonsense."""

    return Server
