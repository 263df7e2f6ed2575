"""The ServerApp: run config -> strategy -> run."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import tasks
from strategies import Checkpoints, Overrides, RoundRecord, SelectionStrategy

from .recording import Recording
from .settings import RunSettings, parse_selector_settings, read_client_sizes

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes, or resume it."""
    settings = RunSettings.from_run_config(context.run_config)
    with Recording(settings) as recording:
        _run(grid, settings, recording)


def _run(grid: Grid, settings: RunSettings, recording: Recording) -> None:
    task = tasks.create(settings.task, partition=settings.partition, data_dir=settings.data_dir)
    test_data = task.test_data()
    rounds: list[RoundRecord] = []  # the round that the next evaluation is of
    strategy = SelectionStrategy(
        settings.selector,
        clients_per_round=settings.clients_per_round,
        selector_settings=parse_selector_settings(settings.selector_settings),
        seed=settings.seed,
        min_available_clients=settings.num_clients,
        local_learning_rate=settings.learning_rate,
        deadlines=settings.deadlines,
        polling=settings.polling,
        faults=settings.faults,
        overrides=Overrides(read_client_sizes(settings.client_sizes), removed=settings.removed_clients or ()),
        checkpoints=Checkpoints(recording.checkpoints, settings.resume) if recording.checkpoints else None,
        stop=lambda _, found: found is not None and recording.is_good_enough(float(str(found["accuracy"]))),
        on_round=rounds.append,
    )

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        metrics = task.evaluate(model, test_data)
        if rounds:
            roster = strategy.roster
            recording.round(round, model, metrics, rounds.pop(), roster.ids(), roster.sizes())
        else:
            recording.round(round, model, metrics)
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
        raise RuntimeError("no round brought usable replies: the model is still the initial one")
    last = max(result.evaluate_metrics_serverapp)
    recording.end(last, {name: array.numpy() for name, array in result.arrays.items()})
