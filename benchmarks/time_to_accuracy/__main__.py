"""The entry point of ``python -m benchmarks.time_to_accuracy``: runs ``cohort bench time-to-accuracy``."""

import sys

from benchmarks.command import bench

if __name__ == "__main__":
    bench(["time-to-accuracy", *sys.argv[1:]], prog_name="python -m benchmarks")
