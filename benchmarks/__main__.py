"""``python -m benchmarks NAME``: the same commands as ``cohort bench NAME``."""

from benchmarks.command import bench

if __name__ == "__main__":
    bench(prog_name="python -m benchmarks")
