"""One engine in a process of its own: it is set up, and then runs rounds on command.

``python -m benchmarks.throughput.worker ENGINE FOLDER`` reads commands as lines of JSON and answers each with
a line: ``{"rounds": n}``, ``{"model": path}``. The first answer comes after the first round. The worker also
runs in the peers' environment, where of this project's packages only NumPy is certain.
"""

from __future__ import annotations

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
    """Execute a command."""
    if "rounds" in command:
        start = time.perf_counter()
        engine.run(command["rounds"])
        return {"seconds": time.perf_counter() - start}
    np.savez(command["model"], *engine.model())
    return {}


def main() -> None:
    """Serve until standard input ends."""
    # Libraries print to standard error, so that their lines do not mix with the answers.
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
