"""``python -m tests.nemesis --seed N --minutes M`` runs a real federation under faults, and checks it."""

import argparse
import contextlib
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from deploy.processes.signals import raise_on_signals

from .faults import episode
from .front_ends import ENGINES
from .nemesis import Nemesis


def main():
    """Run the nemesis; return 0 if nothing was violated, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the schedule (default: a new one)")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="server")
    parser.add_argument("--bound", type=float, help="s until a round after the last healing")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--per-round", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=60.0, help="of a round, s")
    parser.add_argument("--folder", type=Path, help="for the run; must be new (default: a temporary one)")
    parser.add_argument("--schedule", type=int, metavar="N", help="print N episodes and run nothing")
    given = parser.parse_args()
    seed = random.randrange(1 << 31) if given.seed is None else given.seed
    if given.schedule is not None:
        for number in range(given.schedule):
            engine = ENGINES[given.engine]
            now = episode(seed, number, given.clients, engine.faults, engine.fronts)
            print(json.dumps(now.line()))
        return 0
    folder = given.folder or Path(tempfile.mkdtemp(prefix="nemesis-"), "run")
    print(f"seed {seed}, {given.minutes:g} minutes, in {folder}", flush=True)
    console = sys.stdout
    nemesis = Nemesis(
        folder.absolute(),
        seed=seed,
        minutes=given.minutes,
        engine=given.engine,
        bound=given.bound,
        clients=given.clients,
        per_round=given.per_round,
        deadline=given.deadline,
        say=lambda text: print(f"{time.strftime('%H:%M:%S')} {text}", file=console, flush=True),
    )
    # A nemesis that is told to end takes its federation with it.
    with (
        raise_on_signals(lambda _: KeyboardInterrupt()),
        (folder / "serverapp.log").open("w") as log,
        contextlib.redirect_stdout(log),
    ):
        report = nemesis.run()
    print(tell(report))
    return int(bool(report.violations))


def tell(report):
    """Return a report as text, with the command that replays the schedule."""
    lines = []
    if report.verdict is not None:
        found = asdict(report.verdict)
        del found["violations"]
        lines.append(f"{', '.join(f'{name} {value:g}' for name, value in found.items())}")
    for name in ("live", "whole"):
        known = sorted(each[name] for each in report.episodes if each[name] is not None)
        if known:
            lines.append(
                f"{name}: median {statistics.median(known):.1f} s, nine of ten within "
                f"{known[math.ceil(0.9 * len(known)) - 1]:.1f} s, most {known[-1]:.1f} s, "
                f"not seen after {len(report.episodes) - len(known)} episodes"
            )
    slowness = [each["slowness"] for each in report.episodes if each["live"] is not None]
    if slowness:
        lines.append(f"slowness: median {statistics.median(slowness):.1f}, most {max(slowness):.1f}")
    lines += longest_gaps(report.episodes)
    lines.append(f"{len(report.episodes)} episodes, {report.resumes} resumes, {report.minutes:g} minutes")
    if report.violations:
        lines += [f"VIOLATED: {each}" for each in report.violations]
        lines += [
            f"history, schedule and logs: {report.folder}",
            f"again: make nemesis SEED={report.seed} MINUTES={report.minutes:g} ENGINE={report.engine}",
        ]
    return "\n".join(lines)


def longest_gaps(episodes):
    """Return, as lines of a table, the longest time without a completed round for each kind of fault."""
    found = defaultdict(lambda: ([], []))  # of episodes with this fault alone, and with others
    for each in episodes:
        hit = [
            f"{fault['fault']} {fault['part']}"
            for fault, outcome in zip(each["faults"], each["outcome"], strict=True)
            if outcome["hit"]
        ]
        for kind in hit if each["live"] is not None else ():
            found[kind][len(hit) > 1].append(each["gap"])
    lines = [f"{'longest time without a completed round':40} alone          with others"]
    for kind, columns in sorted(found.items()):
        cells = [f"{max(gaps):5.1f} s ({len(gaps)})" if gaps else "-" for gaps in columns]
        lines.append(f"  {kind:38} {cells[0]:14} {cells[1]}")
    return lines if found else []


if __name__ == "__main__":
    sys.exit(main())
