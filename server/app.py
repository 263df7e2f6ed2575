"""The ServerApp: run config -> strategy -> run; evaluation, history, models."""

import time
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import tasks
from strategies import RoundRecord, SelectionStrategy
from strategies.checkpoint import CheckpointFolder

from .history import FILE_NAME, History, read_lines
from .models import Models
from .settings import (
    CHECKPOINTS,
    RunSettings,
    check_same_run,
    parse_selector_settings,
    read_client_sizes,
)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes, or go on with it."""
    settings = RunSettings.from_run_config(context.run_config)
    folder = Path(settings.output_dir).absolute() if settings.output_dir else None
    with ExitStack() as held:
        history = held.enter_context(_begin(folder, settings, held))
        _run(grid, settings, history, folder)


def _begin(folder: Path | None, settings: RunSettings, held: ExitStack) -> History:
    """Begin the history, or go on with it from the last checkpoint; nobody else may do so meanwhile."""
    if folder is None:
        return History(None)
    run = {
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "flwr": version("flwr"),
        **settings.model_dump(),
    }
    path = folder / FILE_NAME
    checkpoints = CheckpointFolder(folder / CHECKPOINTS, report=lambda line: None)  # the strategy says it
    checkpoints.claim()
    held.callback(checkpoints.release)
    if settings.resume:
        check_same_run(next(iter(read_lines(path)), {}), run)
        found = checkpoints.newest()
        return History.resume(path, found.round if found else 0, run)
    history = History(path)
    history.write("run", **run)
    return history


def _run(grid: Grid, settings: RunSettings, history: History, folder: Path | None) -> None:
    began = time.monotonic()
    task = tasks.create(settings.task)
    test_data = task.test_data()
    models = Models(folder)
    rounds: list[RoundRecord] = []  # the round that the next evaluation belongs to

    def is_good_enough(round: int, metrics: MetricRecord | None) -> bool:
        return metrics is not None and 0 < settings.target_accuracy <= float(str(metrics["accuracy"]))

    strategy = SelectionStrategy(
        settings.selector,
        clients_per_round=settings.clients_per_round,
        selector_settings=parse_selector_settings(settings.selector_settings),
        seed=settings.seed,
        quorum=settings.quorum,
        over_selection=settings.over_selection,
        correction=settings.correction,
        client_sizes=read_client_sizes(settings.client_sizes),
        guard=settings.guard,
        min_available_clients=settings.num_clients,
        join_deadline=settings.join_deadline,
        round_deadline=settings.round_deadline,
        absence_deadline=settings.absence_deadline,
        status_deadline=settings.status_deadline,
        poll_interval=settings.poll_interval,
        local_learning_rate=settings.learning_rate,
        checkpoint_dir=folder / CHECKPOINTS if folder else None,
        resume=settings.resume,
        stop=is_good_enough,
        on_round=rounds.append,
    )
    written: dict[str, list[object]] = {}

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        metrics = task.evaluate(model, test_data)
        test = {"test_loss": metrics.loss, "test_accuracy": metrics.accuracy}
        if rounds:
            roster = {"client_ids": strategy.roster.ids(), "client_sizes": strategy.roster.sizes().tolist()}
            if roster != written:
                history.write("roster", **roster)
                written.update(roster)
            history.write_round(rounds.pop(), strategy.roster.ids(), **test)
        else:
            history.write("round", round=round, **test)
        models.offer(round, model, metrics)
        return MetricRecord({"loss": metrics.loss, "accuracy": metrics.accuracy})

    result = strategy.start(
        grid,
        ArrayRecord({name: Array(array) for name, array in task.initial_arrays(settings.seed).items()}),
        num_rounds=settings.num_rounds,
        train_config=ConfigRecord(
            {
                "learning-rate": settings.learning_rate,
                "local-steps": settings.local_steps,
                "batch-size": settings.batch_size,
            }
        ),
        evaluate_fn=evaluate,
    )
    if not result.arrays:
        raise RuntimeError("no round brought a usable reply: the model is as it was at the start")
    last = max(result.evaluate_metrics_serverapp)
    model = models.save_final(last, {name: array.numpy() for name, array in result.arrays.items()})
    target = f"target-accuracy = {settings.target_accuracy:g} is reached"
    history.write(
        "end",
        rounds=last,
        seconds=time.monotonic() - began,
        model=str(model) if model else None,
        best_round=models.best_round,
        reason=target if last < settings.num_rounds else "",
    )
