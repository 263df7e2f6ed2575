"""The ServerApp: makes the strategy from the run config, runs it, evaluates the model, writes the files."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import tasks
from strategies import Checkpoints, RoundRecord, extensions
from strategies.half_precision import HalfPrecisionGrid

from .recording import KnownClients, Recording, UnchangedModelError
from .settings import RunSettings, errors_in_names_of_the_run

extensions.load()  # the user's selectors and tasks
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run or resume the federation that the run config describes."""
    settings = RunSettings.from_run_config(context.run_config)
    if simulated := settings.availability or settings.availability_trace:
        raise ValueError(f"availability = {simulated!r}: must be '': clients report when they are available")
    for name in ("response-times", "device-speeds"):
        if simulated := getattr(settings, name.replace("-", "_")):
            raise ValueError(f"{name} = {simulated!r}: must be '': the clients' response times are real")
    with Recording(settings) as recording, errors_in_names_of_the_run():
        _run(grid, settings, recording)


def _run(grid: Grid, settings: RunSettings, recording: Recording) -> None:
    task = tasks.create(settings.task, partition=settings.partition, data_dir=settings.data_dir)
    test_data = task.test_data()
    rounds: list[RoundRecord] = []  # at most one: the record of the round whose model is evaluated next
    strategy = settings.strategy(
        checkpoints=Checkpoints(recording.checkpoints, settings.resume) if recording.checkpoints else None,
        stop=lambda _, found: found is not None and settings.ends_early(float(str(found["accuracy"]))),
        on_round=rounds.append,
        reporters=settings.reporters(),
    )

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        model = {name: array.numpy() for name, array in arrays.items()}
        metrics = task.evaluate(model, test_data) if settings.evaluates(round) else None
        if rounds:
            roster, sizes = strategy.roster, strategy.data_sizes
            clients = KnownClients(roster.id_of, sizes, lambda: (roster.ids(), strategy.groups()))
            measured = {name: dict(record) for name, record in strategy.group_metrics.items()}
            traffic = strategy.traffic.take()
            recording.round(round, model, metrics, rounds.pop(), clients, measured, traffic)
        else:
            recording.round(round, model, metrics)
        return metrics and MetricRecord({"loss": metrics.loss, "accuracy": metrics.accuracy})

    result = strategy.start(
        HalfPrecisionGrid(grid) if settings.wire == "float16" else grid,
        ArrayRecord({name: Array(array) for name, array in task.initial_arrays(settings.seed).items()}),
        num_rounds=settings.num_rounds,
        train_config=ConfigRecord({**settings.train_config}),
        evaluate_fn=evaluate,
    )
    if strategy.unchanged:
        raise UnchangedModelError(strategy.unchanged)
    last = max(result.evaluate_metrics_serverapp)
    recording.end(last, {name: array.numpy() for name, array in result.arrays.items()})
