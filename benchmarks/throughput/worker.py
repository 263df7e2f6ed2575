"""The process of one engine: it sets the engine up, and then runs rounds on command.

``python -m benchmarks.throughput.worker ENGINE FOLDER`` sets up the engine, runs a first round, prints an
answer, and then reads commands from standard input: ``{"rounds": n}`` runs n rounds, and ``{"model": path}``
saves the global model. Commands and answers are lines of JSON. In the peers' environment, of all packages
that this project needs, only NumPy is certain to be installed.
"""

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.fresh import ONE_THREAD

os.environ |= ONE_THREAD  # before NumPy is imported

import numpy as np

from benchmarks.throughput.engines import Engine, create
from benchmarks.throughput.workloads import load, read


def answer(engine: Engine, command: dict[str, Any]) -> dict[str, Any]:
    """Execute a command, and return the answer."""
    if "rounds" in command:
        start = time.perf_counter()
        engine.run(command["rounds"])
        return {"seconds": time.perf_counter() - start}
    np.savez(command["model"], *engine.model())
    return {}


def main() -> None:
    """Set up the engine, and execute commands until standard input ends."""
    # What libraries print goes to standard error, so that it does not mix with the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.getLogger("flwr").setLevel(logging.WARNING)
    name, folder = sys.argv[1], Path(sys.argv[2])
    try:
        engine = create(name, read(folder), load(folder), folder)
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}), file=answers)
        return
    engine.run(1)
    print("{}", file=answers)
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), file=answers)
    engine.close()


if __name__ == "__main__":
    main()
