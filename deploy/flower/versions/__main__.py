"""Tries the installed Flower: which names are gone or have changed, and whether the contract tests pass.

`python -m deploy.flower.versions` does so in a clone; further arguments are pytest's. ``--names`` leaves out
the tests, ``--write`` records the names of the installed version. Exit status: 0 if no name is gone and all
tests pass.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from deploy.flower.versions import TRIED, TRYING, names

_ROOT = Path(__file__).parents[3]
# The tests of all that relies on Flower in a server and its devices. The gate and the front door are code of
# our own, which floods test for minutes.
CONTRACT = (
    *("tests/deploy/fleet", "tests/deploy/flower"),
    *("tests/deploy/page/test_database.py", "tests/federation/test_federation.py"),
)
LEFT_OUT = ("--ignore", "tests/deploy/fleet/gate", "-k", "not test_front_door.py or own_key_only")
MARKERS = "not slow"


def main(arguments: Sequence[str]) -> int:
    """Print how the installed Flower differs, run the tests, and return the exit status."""
    if arguments == ["--write"]:
        names.write()
        print(f"{len(names.recorded())} names of Flower {version('flwr')} are recorded in {names.RECORDED}")
        return 0
    gone, changed = names.differences()
    print(f"Flower {version('flwr')} and the {len(names.recorded())} private names of {TRIED[-1]} in use:")
    print(f"{len(gone)} are gone, {len(changed)} have changed")
    for what, found in (("gone", gone), ("changed", changed)):
        for name in found:
            print(f"  {what}: {name}")
    if arguments == ["--names"]:
        return bool(gone)
    if not (_ROOT / CONTRACT[0]).exists():
        print("The contract tests are not installed: run this command in a clone of the repository")
        return 1
    environment = {**os.environ, TRYING: version("flwr")}
    command = [sys.executable, "-m", "pytest", *CONTRACT, *LEFT_OUT, "-m", MARKERS, *arguments]
    tests = subprocess.run(command, cwd=_ROOT, env=environment, check=False)
    return tests.returncode or bool(gone)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
