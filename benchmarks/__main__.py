"""The entry point of ``python -m benchmarks NAME``, which does the same as ``cohort bench NAME``."""

from benchmarks.command import bench

if __name__ == "__main__":
    bench(prog_name="python -m benchmarks")
