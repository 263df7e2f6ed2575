"""The machine, the packages and the commit of a result."""

import importlib
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from deploy.flower.app_folder import CODE
from deploy.sweeps.source_digests import package_version

PACKAGES = ("numpy", "scipy", "torch", "flwr")
ARITHMETIC = ("cpu", "vectors", "blas", "python", "numpy", "scipy", "gpu")
"""The entries of `machine` that must be equal on two machines so that they compute the same, bit for bit."""


def machine() -> dict[str, Any]:
    """Return the models of CPU and GPU, the number of cores, and the versions of Python and the packages.

    `vectors` are the CPU's vector instructions that NumPy uses. `blas` is the library of linear algebra, and
    the kind of CPU for which it chooses its code here.
    """
    numpy: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "vectors": " ".join(numpy.get("SIMD Extensions", {}).get("found", [])),
        "blas": _blas(numpy),
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: package_version(name) for name in PACKAGES},
        **({"gpu": gpu()} if gpu() else {}),
    }


@cache
def gpu() -> str:
    """Return the model of the GPU on which torch trains networks, "" without one."""
    if not find_spec("torch"):
        return ""
    cuda = importlib.import_module("torch.cuda")
    return str(cuda.get_device_name()) if cuda.is_available() else ""


def same_arithmetic(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two machines compute the same numbers, see `ARITHMETIC`."""
    return all(one.get(key) == other.get(key) for key in ARITHMETIC)


def restricted_to(instructions_of: Mapping[str, Any]) -> dict[str, str]:
    """Return environment variables with which a new process computes as another machine does.

    NumPy, OpenBLAS and torch choose their code by the CPU's vector instructions, which the variables
    restrict; OpenBLAS also by a variable of its own, which may be set here. The result is empty if this
    machine chooses the same code, or lacks some of the other's instructions.
    """
    here = machine()
    ours, theirs = (set(each.get("vectors", "").split()) for each in (here, instructions_of))
    if not theirs or not theirs <= ours:
        return {}
    found = {"NPY_DISABLE_CPU_FEATURES": " ".join(sorted(ours - theirs))} if theirs < ours else {}
    library, _, code = instructions_of["blas"].rpartition(" ")
    if here["blas"].rpartition(" ")[0] == library and here["blas"] != instructions_of["blas"]:
        found["OPENBLAS_CORETYPE"] = code
    if "X86_V4" in ours - theirs:  # AVX-512
        found |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    return found


def commit(files: Iterable[Path] = ()) -> str:
    """Return the hash of the last commit, "" outside Git, with "+changes" if one of `files` has changed."""
    found = _git("rev-parse", "HEAD")
    paths = [str(file.relative_to(CODE)) for file in files]
    changed = paths and _git("status", "--porcelain", "--", *paths)
    return f"{found[:12]}+changes" if found and changed else found[:12]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=CODE, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    values = {key.strip(): value.strip() for key, value in values.items()}
    numbers = [f"{key} {values[key]}" for key in ("cpu family", "model") if key in values]
    return ", ".join([values.get("model name", platform.machine()), *numbers])


def _blas(numpy: Mapping[str, Any]) -> str:
    blas = numpy.get("Build Dependencies", {}).get("blas", {})
    kernels = ""
    if find_spec("threadpoolctl"):
        pools = importlib.import_module("threadpoolctl").threadpool_info()
        kernels = next((pool.get("architecture", "") for pool in pools if "numpy" in pool["filepath"]), "")
    return f"{blas.get('name', '')} {blas.get('version', '')} {kernels}".strip()
