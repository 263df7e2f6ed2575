"""The ServerApp: run config -> strategy -> run; evaluation, history, final model."""

import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from safetensors.numpy import save_file

import tasks
from strategies import RoundRecord, SelectionStrategy

from .history import History
from .settings import RunSettings, parse_selector_settings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes."""
    settings = RunSettings.from_run_config(context.run_config)
    folder = Path(settings.output_dir).absolute() if settings.output_dir else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with History(folder / "history.jsonl" if folder else None) as history:
        history.write(
            "run",
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            flwr=version("flwr"),
            **settings.model_dump(),
        )
        _run(grid, settings, history, folder)


def _run(grid: Grid, settings: RunSettings, history: History, folder: Path | None) -> None:
    began = time.monotonic()
    task = tasks.create(settings.task)
    test_data = task.test_data()
    rounds: list[RoundRecord] = []  # the round that the next evaluation belongs to
    strategy = SelectionStrategy(
        settings.selector,
        clients_per_round=settings.clients_per_round,
        selector_settings=parse_selector_settings(settings.selector_settings),
        seed=settings.seed,
        min_available_clients=settings.num_clients,
        join_deadline=settings.join_deadline,
        round_deadline=settings.round_deadline,
        status_deadline=min(60.0, settings.round_deadline),
        poll_interval=settings.poll_interval,
        local_learning_rate=settings.learning_rate,
        on_round=rounds.append,
    )
    written: dict[str, list[object]] = {}

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        metrics = task.evaluate({name: array.numpy() for name, array in arrays.items()}, test_data)
        test = {"test_loss": metrics.loss, "test_accuracy": metrics.accuracy}
        if rounds:
            roster = {"client_ids": strategy.roster.ids(), "client_sizes": strategy.roster.sizes().tolist()}
            if roster != written:
                history.write("roster", **roster)
                written.update(roster)
            history.write_round(rounds.pop(), strategy.roster.ids(), **test)
        else:
            history.write("round", round=round, **test)
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
    model = folder / "model.safetensors" if folder else None
    if model is not None:
        save_file({name: array.numpy() for name, array in result.arrays.items()}, model)
    history.write(
        "end",
        rounds=settings.num_rounds,
        seconds=time.monotonic() - began,
        model=str(model) if model else None,
    )
