"""``python -m tests.faults --seed N`` replays one history; ``--seeds A:B`` plays many."""

import argparse
import sys
import time

from .play import play

_SHOWN = 3  # failing seeds that are printed in full


def main():
    """Play the given seeds; return 0 if all invariants hold, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="play one history and print it")
    which.add_argument("--seeds", metavar="A:B", help="play seeds A to B - 1 and print those that fail")
    given = parser.parse_args()
    if given.seed is not None:
        outcome = play(given.seed)
        print(tell(outcome))
        return int(bool(outcome.error))
    first, last = map(int, given.seeds.split(":"))
    began, failed = time.perf_counter(), []
    for seed in range(first, last):
        outcome = play(seed)
        if outcome.error:
            failed.append(seed)
            print(tell(outcome) if len(failed) <= _SHOWN else f"seed {seed}: {outcome.error}", flush=True)
    seconds = time.perf_counter() - began
    print(
        f"{last - first} histories in {seconds:.1f} s, {60 * (last - first) / seconds:.0f} a minute; "
        f"{len(failed)} failed{f': {failed}' if failed else ''}"
    )
    return int(bool(failed))


def tell(outcome):
    """Return a history as text, with the command that replays it."""
    lines = [*outcome.script.lines(), *outcome.story]
    if outcome.error:
        lines += [
            f"BROKEN: {outcome.error}",
            f"play it again: python -m tests.faults --seed {outcome.script.seed}",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
