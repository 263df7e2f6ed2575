"""The entry point of ``python -m benchmarks.rounds``, which does the same as ``cohort bench rounds``."""

import sys

from benchmarks.command import bench

if __name__ == "__main__":
    bench(["rounds", *sys.argv[1:]], prog_name="python -m benchmarks")
