"""Calls a function in a fresh interpreter, so that the caller's imports and memory are not measured."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment variables that limit linear algebra to one thread, if they are set before NumPy is imported."""

_CODE = (
    "import pickle, sys; function, args, kwargs = pickle.load(sys.stdin.buffer); "
    "pickle.dump(function(*args, **kwargs), sys.stdout.buffer)"
)


def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a new process whose linear algebra has one thread, and return its result."""
    return call_with({}, function, *args, **kwargs)


def call_with(
    environment: Mapping[str, str], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a function as `call` does, with further environment variables.

    It must be at the top level of a module, and not print; arguments and result must be picklable. Raises
    subprocess.CalledProcessError if it fails; the traceback goes to standard error.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        input=pickle.dumps((function, args, kwargs)),
        stdout=subprocess.PIPE,
        env={**os.environ, **ONE_THREAD, **environment},
        check=True,
    )
    result: T = pickle.loads(done.stdout)
    return result
