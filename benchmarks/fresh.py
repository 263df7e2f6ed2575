"""Call a function in a fresh interpreter: imports and memory of the caller are not measured."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment that limits linear algebra to one thread; it must be set before NumPy is imported."""

_CODE = (
    "import pickle, sys; function, args, kwargs = pickle.load(sys.stdin.buffer); "
    "pickle.dump(function(*args, **kwargs), sys.stdout.buffer)"
)


def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function of a module returns when a new process with one thread calls it.

    The function must not print. Its arguments and its result are pickled.

    Raises
    ------
    subprocess.CalledProcessError
        If it raises; the traceback goes to standard error.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        input=pickle.dumps((function, args, kwargs)),
        stdout=subprocess.PIPE,
        env=os.environ | ONE_THREAD,
        check=True,
    )
    result: T = pickle.loads(done.stdout)
    return result
