"""The Flower app of `benchmarks.devices`, which copies this file into an app's folder and submits it.

The ServerApp runs Cohort's strategy and appends a JSON line to a file after each round. The ClientApp is
never called, because the devices are simulated.
"""

import json
import math
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from strategies import Deadlines, Polling, SelectionStrategy

client = ClientApp()
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; each waits for every reply, for the seconds of the setting `limit` at most."""
    settings = context.run_config
    file = Path(str(settings["lines"]))
    began = time.monotonic()

    def note(record: object) -> None:
        nonlocal began
        now = time.monotonic()
        failures = {str(client): why for client, why in record.failures.items()}  # type: ignore[attr-defined]
        line = {
            "round": record.round,  # type: ignore[attr-defined]
            "seconds": now - began,
            "selected": len(record.selection.clients),  # type: ignore[attr-defined]
            "available": record.num_available,  # type: ignore[attr-defined]
            "failures": failures,
            "cpu": time.process_time(),
        }
        with file.open("a") as opened:
            opened.write(json.dumps(line) + "\n")
        began = time.monotonic()

    size, layers = int(settings["parameters"]), int(settings["layers"])
    strategy = SelectionStrategy(
        str(settings["selector"]),
        clients_per_round=int(settings["per-round"]),
        selector_settings={"replacement": False} if settings["selector"] == "uniform" else {},
        min_available_clients=int(settings["nodes"]),
        deadlines=Deadlines(round=float(settings["limit"]), shortest=math.inf),
        polling=Polling(ask_status=True),
        on_round=note,
    )
    arrays = [np.zeros(part.size, np.float32) for part in np.array_split(np.empty(size, np.int8), layers)]
    strategy.start(grid, ArrayRecord(arrays), num_rounds=int(settings["rounds"]))
