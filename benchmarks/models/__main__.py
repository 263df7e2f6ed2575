"""The entry point of ``python -m benchmarks.models``, which does the same as ``cohort bench models``."""

import sys

from benchmarks.command import bench

if __name__ == "__main__":
    bench(["models", *sys.argv[1:]], prog_name="python -m benchmarks")
