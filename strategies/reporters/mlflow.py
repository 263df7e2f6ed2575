"""A reporter that writes to MLflow: into the run's folder, or to a tracking server."""

import os
import shutil
import time
from collections.abc import Mapping
from importlib import import_module
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.common import log

from .base import Reporter, RoundReport, RunInfo, read_note, write_note
from .scalars import scalars

_NOTE = "mlflow.json"
_AT_ONCE = 1000  # the most metrics that MLflow takes in one request
_SETTINGS_AT_ONCE = 100


class MLflow(Reporter):
    """Writes the numbers of each round (see `scalars`) to one run of MLflow.

    The file ``mlflow.json`` in the folder holds the id of MLflow's run. A resume continues this run. MLflow
    cannot delete numbers, so the rounds that are trained again keep their first numbers.

    Parameters
    ----------
    folder : str or Path
        The folder of the run.
    tracking_uri : str, optional
        MLflow's store (default: the environment variable ``MLFLOW_TRACKING_URI``, otherwise the SQLite
        database ``mlruns/mlflow.db`` in the folder).
    experiment : str (default: "cohort")
        The experiment, which is created if it does not exist.
    name : str, optional
        The name of MLflow's run (default: the folder's name).
    settings : mapping of str to value, optional
        Settings that are shown beside those of the strategy (default: none).
    """

    package = "mlflow"
    extra = "mlflow"

    def __init__(
        self,
        folder: str | Path,
        *,
        tracking_uri: str | None = None,
        experiment: str = "cohort",
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.settings = Path(folder).absolute(), dict(settings or {})
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        self._experiment, self._name = experiment, name or self.folder.name
        self._require()
        self._mlflow: Any = import_module("mlflow")
        self._client: Any = None
        self._run_id = ""
        self._last: dict[str, int] = {}  # the last round that MLflow has, for each metric

    def begin(self, run: RunInfo) -> None:
        self._connect()
        # A run that was killed in round 1 begins again. It continues its own run of MLflow.
        if self._found() and max(self._last.values(), default=0) <= 0:
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            self._create(run)

    def resume(self, run: RunInfo, round: int) -> None:
        self._connect()
        if self._found():
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            log(INFO, "MLflow has no run of %s: a new run begins after round %d", self.folder, round)
            self._create(run)

    def round(self, report: RoundReport) -> None:
        now = int(time.time() * 1000)
        new = [
            self._mlflow.entities.Metric(name, value, now, report.round)
            for name, value in scalars(report).items()
            if self._last.get(name, -1) < report.round
        ]
        for first in range(0, len(new), _AT_ONCE):
            self._client.log_batch(self._run_id, metrics=new[first : first + _AT_ONCE])

    def end(self, round: int, reason: str) -> None:
        self._finish("FINISHED", reason)

    def failed(self, round: int, reason: str) -> None:
        self._finish("FAILED", reason)

    def stopped(self, round: int, reason: str) -> None:
        self._finish("KILLED", reason)

    def _finish(self, status: str, reason: str) -> None:
        self._client.set_tag(self._run_id, "reason", reason)
        self._client.set_terminated(self._run_id, status)

    def _connect(self) -> None:
        uri = self._uri
        if not uri:
            # MLflow 3 refuses to write a folder of files.
            database = self.folder / "mlruns" / "mlflow.db"
            if not database.exists():
                self._create_database(database)
            uri = f"sqlite:///{database}"
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)

    def _create_database(self, path: Path) -> None:
        """Create an empty database under another name, and then rename it.

        MLflow creates the tables one after another, in several seconds. If the process is killed in between,
        some tables are missing, and MLflow cannot use the database.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        new, copy = (path.with_name(f"{path.name}.{suffix}") for suffix in ("new", "copy"))
        for each in (new, new.with_name(f"{new.name}-journal")):
            each.unlink(missing_ok=True)  # a process that was killed has left it
        self._mlflow.MlflowClient(tracking_uri=f"sqlite:///{new}")
        shutil.copyfile(new, copy)  # MLflow keeps the first file open
        copy.replace(path)
        new.unlink()

    def _found(self) -> bool:
        """Return whether MLflow has the run that the note names, and set the last round of each metric."""
        self._run_id, self._last = str(read_note(self.folder / _NOTE).get("run_id", "")), {}
        if not self._run_id:
            return False
        try:
            names = self._client.get_run(self._run_id).data.metrics
        except self._mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # the server cannot be reached, for example
                raise
            return False
        for name in names:
            history = self._client.get_metric_history(self._run_id, name)
            self._last[name] = max(each.step for each in history)
        return True

    def _create(self, run: RunInfo) -> None:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            artifacts = None if self._uri else (self.folder / "mlruns" / "artifacts").as_uri()
            experiment = self._client.create_experiment(self._experiment, artifact_location=artifacts)
        else:
            experiment = found.experiment_id
        self._run_id = self._client.create_run(experiment, run_name=self._name).info.run_id
        self._last = {}
        write_note(self.folder / _NOTE, run_id=self._run_id)
        params = [self._mlflow.entities.Param(name, text) for name, text in self._shown(run).items()]
        for first in range(0, len(params), _SETTINGS_AT_ONCE):
            self._client.log_batch(self._run_id, params=params[first : first + _SETTINGS_AT_ONCE])
