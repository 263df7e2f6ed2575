"""The ServerApp of Flower's quickstart, with `Forecast` instead of `FedAvg`."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_cohort import Forecast, Polling

from .task import Net, evaluate, load_test_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model, and print its accuracy."""
    config = context.run_config
    data = load_test_data()
    torch.manual_seed(int(config["seed"]))

    def evaluate_model(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = evaluate(net, data)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = Forecast(
        clients_per_round=int(config["clients-per-round"]),
        min_available_clients=int(config["num-clients"]),
        seed=int(config["seed"]),
        polling=Polling(ask_status=True),  # the clients answer, see client_app.py
    )
    result = strategy.start(
        grid,
        ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-rounds"]),
        evaluate_fn=evaluate_model,
    )
    if strategy.unchanged:  # no round changed the model: the run has failed
        raise RuntimeError(strategy.unchanged)
    last = result.evaluate_metrics_serverapp[int(config["num-rounds"])]
    print(f"accuracy after {config['num-rounds']} rounds: {last['accuracy']:.3f}")
