"""One engine in a process of its own: sets it up, and runs rounds when it is told to.

``python -m benchmarks.throughput.worker ENGINE FOLDER`` reads commands as lines of JSON and answers each with
one: ``{"rounds": n}``, ``{"model": path}``. The first answer comes after the first round. It also runs in the
peers' environment, where only NumPy is sure to be there.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np

from benchmarks.throughput.engines import Engine, create
from benchmarks.throughput.workloads import load, read


def answer(engine: Engine, command: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked for."""
    if "rounds" in command:
        start = time.perf_counter()
        engine.run(command["rounds"])
        return {"seconds": time.perf_counter() - start}
    np.savez(command["model"], *engine.model())
    return {}


def main() -> None:
    """Serve until standard input ends."""
    # What libraries print must not get between the answers.
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
