"""The ServerApp: importing `ByPower` registers this selector, and the strategy gets its name."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_cohort import Polling, SelectionStrategy

from .selector import ByPower
from .task import evaluate, initial_weights, load_test_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model, and print its accuracy."""
    config = context.run_config
    inputs, labels = load_test_data()

    def evaluate_model(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        loss, accuracy = evaluate(*arrays.to_numpy_ndarrays(), inputs, labels)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = SelectionStrategy(
        ByPower.name,
        selector_settings={"power": float(config["power"])},
        clients_per_round=int(config["clients-per-round"]),
        min_available_clients=int(config["num-clients"]),
        seed=int(config["seed"]),
        polling=Polling(ask_status=True),  # the clients answer, see client_app.py
    )
    result = strategy.start(
        grid,
        ArrayRecord([initial_weights()]),
        num_rounds=int(config["num-rounds"]),
        evaluate_fn=evaluate_model,
    )
    if strategy.unchanged:  # no round changed the model: the run has failed
        raise RuntimeError(strategy.unchanged)
    last = result.evaluate_metrics_serverapp[int(config["num-rounds"])]
    print(f"accuracy after {config['num-rounds']} rounds: {last['accuracy']:.3f}")
