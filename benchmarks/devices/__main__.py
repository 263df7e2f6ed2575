"""The entry point of ``python -m benchmarks.devices``, which does the same as ``cohort bench devices``."""

import sys

from benchmarks.command import bench

if __name__ == "__main__":
    bench(["devices", *sys.argv[1:]], prog_name="python -m benchmarks")
