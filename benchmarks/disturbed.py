"""What faults cost: a disturbed federation of real processes beside the same one left in peace.

``python -m benchmarks.disturbed [--rounds 200] [--seeds 5] [--clients 20] [--kills 10] [--selector NAME]
[--json]``

The disturbed one runs on a cluster as `cohort up` starts it, with the ClientApp of `benchmarks.faulty`: in
each round 30 % of the clients fail at random (they raise, die, or answer too late), and 10 % of them lie all
the time. Its ServerApp is killed with SIGKILL at random moments, and resumed. The one in peace has the honest
clients only, each with the same samples, and runs in process, which gives the numbers that a cluster would
(`tests/federation/test_federation.py`).

Both end with a test accuracy; the table shows their difference in points, the model's at the end and the mean
over the last tenth of the rounds, which varies less.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

import tasks
from benchmarks import faulty
from client.app import app as client_app
from deploy.engines.cluster import LocalCluster
from deploy.flower.submission import copy_app
from deploy.processes.groups import wait_until
from server.app import app as server_app
from server.history import FILE_NAME, read_lines
from server.settings import CHECKPOINTS
from simulation.grid import InProcessGrid
from strategies.checkpoint import CheckpointFolder

ROOT = Path(__file__).parent.parent
ROUND_LIMIT = 60.0  # seconds for one round, kills and all


def faulty_app(folder: Path) -> Path:
    """Copy this repository's app, with the faulty clients in the place of the honest ones."""
    copy_app(ROOT, folder, folder)
    project = folder / "pyproject.toml"
    honest, faulty_ = 'clientapp = "client.app:app"', 'clientapp = "benchmarks.faulty:app"'
    text = project.read_text()
    if honest not in text:
        raise RuntimeError(f"{project}: {honest} is not in it")
    project.write_text(text.replace(honest, faulty_))
    return folder


def overrides(clients: int, seed: int, file: Path) -> Path:
    """Write down how many samples each client holds."""
    task = tasks.create("digits")
    sizes = {f"client-{m:02d}": len(task.client_data(m, clients, seed)) for m in range(clients)}
    file.write_text(json.dumps(sizes))
    return file


def settings(selector: str, rounds: int, seed: int, clients: int, folder: Path) -> dict[str, Any]:
    """Return the run config of both federations."""
    return {
        "selector": selector,
        "num-clients": clients,
        "clients-per-round": 6,
        "num-rounds": rounds,
        "round-deadline": faulty.DEADLINE,
        # Half of these clients hold 7 samples, one holds 745: where honest sizes differ so much a lie about
        # one's size cannot be told from the truth, and the operator has to say it.
        "client-sizes": str(overrides(clients, seed, folder.with_suffix(".json"))),
        "seed": seed,
        "output-dir": str(folder),
    }


def disturbed(cluster: LocalCluster, config: dict[str, Any], kills: int) -> list[dict[str, Any]]:
    """Run the federation and kill its server so many times; return its history."""
    folder = Path(config["output-dir"])
    chance = random.Random(config["seed"])
    moments = sorted(chance.sample(range(1, config["num-rounds"]), kills))
    name = f"disturbed-{config['seed']}"

    def rounds() -> int:
        return max(
            (line["round"] for line in read_lines(folder / FILE_NAME) if line["type"] == "round"), default=0
        )

    for number, moment in enumerate([*moments, None]):
        run = cluster.submit({**config, "resume": number > 0}, f"{name}-{number}")
        if moment is None:
            run.wait(ROUND_LIMIT * config["num-rounds"])
            break
        wait_until(lambda moment=moment, run=run: rounds() >= moment or run.over, ROUND_LIMIT * moment)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 2))
        claim = folder / CHECKPOINTS / "lock"
        if run.over or not CheckpointFolder(folder / CHECKPOINTS).is_claimed():
            raise RuntimeError(f"the run ended by itself:\n{run.log.read_text()[-3000:]}")
        os.kill(int(claim.read_text()), signal.SIGKILL)
    return read_lines(folder / FILE_NAME)


def in_peace(config: dict[str, Any], clients: int) -> list[dict[str, Any]]:
    """Run the honest clients alone, in process; return the history."""
    honest = [m for m in range(clients) if not faulty.lies(m, clients)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    config = {**project["tool"]["flwr"]["app"]["config"], **config, "num-clients": len(honest)}
    nodes = ({"partition-id": m, "num-partitions": clients} for m in honest)
    grid = InProcessGrid(client_app, nodes, run_config=config)
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    return read_lines(Path(config["output-dir"]) / FILE_NAME)


def accuracies(lines: list[dict[str, Any]]) -> list[float]:
    """Return the test accuracy after each round, in percent."""
    if lines[-1]["type"] != "end":
        raise RuntimeError(f"the run did not end: {lines[-1]}")
    found = {line["round"]: 100 * line["test_accuracy"] for line in lines if line["type"] == "round"}
    return [found[number] for number in sorted(found)]


def measure(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run both federations for each seed."""
    rows = []
    app = faulty_app(folder / "app")
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        with LocalCluster(folder / f"cluster-{seed}", args.clients, app=app) as cluster:
            began = time.monotonic()
            config = settings(args.selector, args.rounds, seed, args.clients, folder / f"disturbed-{seed}")
            lines = disturbed(cluster, config, args.kills)
            seconds = time.monotonic() - began
        peace = accuracies(in_peace({**config, "output-dir": str(folder / f"peace-{seed}")}, args.clients))
        faults = accuracies(lines)
        tail = max(1, args.rounds // 10)
        rounds = [line for line in lines if line["type"] == "round" and line["round"]]
        liars = {f"client-{m:02d}" for m in range(args.clients) if faulty.lies(m, args.clients)}
        rows.append(
            {
                "seed": seed,
                "in_peace": peace[-1],
                "disturbed": faults[-1],
                "in_peace_tail": statistics.fmean(peace[-tail:]),
                "disturbed_tail": statistics.fmean(faults[-tail:]),
                "rounds": len(rounds),
                "skipped": sum(bool(line["skipped"]) for line in rounds),
                "failures": sum(len(line["failures"]) for line in rounds),
                "clipped": sum(len(line["clipped"]) for line in rounds),
                "honest_bounded": sum(
                    each["client"] not in liars for line in rounds for each in line["clipped"]
                ),
                "honest_aside": sorted({each for line in rounds for each in line["quarantined"]} - liars),
                "resumes": sum(line["type"] == "resume" for line in lines),
                "seconds": seconds,
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table, as Markdown."""
    head = "| seed | in peace | disturbed | difference | last tenth | failures | bounded | void | resumed |"
    lines = [head, "|" + " --- |" * 9]
    for row in rows:
        lines.append(
            f"| {row['seed']} | {row['in_peace']:.2f} | {row['disturbed']:.2f} "
            f"| {row['disturbed'] - row['in_peace']:+.2f} "
            f"| {row['disturbed_tail'] - row['in_peace_tail']:+.2f} | {row['failures']} | {row['bounded']} "
            f"| {row['void']} | {row['resumes']} |"
        )
    for name in ("", "_tail"):
        apart = [row[f"disturbed{name}"] - row[f"in_peace{name}"] for row in rows]
        spread = statistics.stdev(apart) if len(apart) > 1 else 0.0
        what = "last tenth" if name else "at the end"
        lines.append(f"\nDifference {what}: {statistics.fmean(apart):+.2f} ± {spread:.2f} points")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--selector", default="forecast")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cohort-disturbed-"))
    try:
        rows = measure(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(rows, indent=1) if args.json else table(rows))


if __name__ == "__main__":
    main()
