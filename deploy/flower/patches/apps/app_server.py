"""The app server: a process that has imported an app, and forks a process for each message to the app.

In stock Flower, every message imports the app anew, with NumPy, scikit-learn or torch. Here a SuperNode has
one app server for each bundle (FAB) that it runs. The process of each message starts from the same memory,
and what it stores or leaks does not reach other messages.

An app cannot be forked if it does one of these things during its import:

- It starts threads. A forked process would lack them, and may wait for a lock that one of them holds. Threads
  that a library ends before a fork and starts again later, such as those of OpenBLAS, do not count.
- It draws random numbers from the operating system, for example by ``rng = numpy.random.default_rng()``.
  Every message would draw the same numbers.
- It initializes CUDA.

The app server then reports the reason and ends, and each message imports the app, as in stock Flower.

Anything else that an app computes during its import, for example from the time, is the same for all messages.
NumPy's and Python's global generators are seeded anew in each message, unless the app has seeded them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from deploy.flower import fork_server
from deploy.flower.patches import clientapp
from deploy.flower.patches.app_channel import use_channel
from deploy.flower.patches.shared import replace

# Lines that an app server sends: "send me the bundle", and "I have imported the app".
WANTED, READY = b"bundle\n", b"ready\n"
REFUSED = b"refused "  # begins the line "the app cannot be forked"; the reason and a line feed follow

_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"


class _Unfit(Exception):  # noqa: N818
    """The app cannot be forked. The message says why."""


def main() -> NoReturn:
    """Run an app server.

    `sys.argv` holds the program's name, and the bundle's id, version, hash and size in bytes.
    """
    fab_id, version, digest, size = sys.argv[1:]
    end = socket.socket(fileno=int(os.environ.pop(fork_server.CHANNEL)))
    channels = socket.socket(fileno=int(os.environ.pop(fork_server.CHANNELS)))
    end.sendall(WANTED)
    bundle = _receive(end, int(size))
    try:
        with _ended_with(end):
            app, reseed = _imported(bundle, fab_id, version, digest)
    except BaseException as error:
        reason = str(error) if isinstance(error, _Unfit) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            end.sendall(REFUSED + " ".join(reason.split()).encode()[:1000] + b"\n")
        sys.exit(0)
    del bundle
    (program,) = entry_points(group="console_scripts", name="flwr-clientapp")
    end.sendall(READY)
    server = fork_server.Server(
        {"flwr-clientapp": partial(_run, program.load(), app, (fab_id, version, digest))},
        connection=end,
        channels=channels,
        welcome=READY,
        prepare=reseed,
    )
    fork_server.run(server)


def _receive(end: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        try:
            part = end.recv(min(size - len(received), 1 << 20))
        except OSError:
            part = b""
        if not part:
            sys.exit(0)  # the SuperNode has ended
        received += part
    return bytes(received)


@contextlib.contextmanager
def _ended_with(end: socket.socket) -> Any:
    """End this process at once if the other end of the connection `end` is closed during the `with` block.

    Otherwise nobody could end an import that takes for ever.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # from here on, the signal SIGIO ends this process
    flags = fcntl.fcntl(end, fcntl.F_GETFL)
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        end.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            if not end.recv(1, socket.MSG_PEEK):  # the other end was closed before the block
                os._exit(0)
        end.settimeout(None)
        yield
    finally:
        fcntl.fcntl(end, fcntl.F_SETFL, flags)


def _imported(bundle: bytes, fab_id: str, version: str, digest: str) -> tuple[Any, Callable[[], None]]:
    """Import an app. Return it, and a function that seeds the global generators in a forked process."""
    clientapps = importlib.import_module(_CLIENTAPP)
    folder = str(clientapps.install_from_fab(bundle, skip_prompt=True))
    load = clientapps.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    with _Randomness(folder) as randomness:
        app = load(fab_id, version, digest)
    if randomness.drawn:
        raise _Unfit(f"it draws random numbers from the system when it is imported ({randomness.drawn})")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise _Unfit("it initializes CUDA when it is imported")
    clientapp.patch_before_fork()
    _warm_up()
    if (threads := _threads()) > 1:
        raise _Unfit(f"it starts threads when it is imported ({threads - 1} of them)")
    return app, randomness.reseed


def _warm_up() -> None:
    """Fill caches, such as those of regular expressions, which otherwise each message would fill."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--token", type=str, required=True, help="a token")
    parser.parse_args(["--token", ""])
    flwr = importlib.import_module("flwr.app")
    arrays = flwr.ArrayRecord([sys.modules["numpy"].zeros(1, "float32")])
    others = {"metrics": flwr.MetricRecord({"a": 1.0}), "config": flwr.ConfigRecord({"a": 1})}
    record = flwr.RecordDict({"arrays": arrays, **others})

    def copied(part: Any) -> Any:
        children = {name: copied(each) for name, each in (part.children or {}).items()}
        return type(part).inflate(part.deflate(), children)

    copied(record)["arrays"].to_numpy_ndarrays()


def _threads() -> int:
    """Return the number of this process's threads, except those that libraries end before a fork.

    This function forks a process, so that the libraries end these threads.
    """
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    return len(list(Path("/proc/self/task").iterdir()))


class _Randomness:
    """While an app is imported, notes whether it seeds a generator or draws from the system."""

    def __init__(self, folder: str) -> None:
        self.drawn = ""  # where the app has drawn random numbers from the system
        self._folder = folder + os.sep
        self._seeded: dict[str, bool] = {}  # module -> True if the module's global generator was given a seed
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> _Randomness:
        numpy, bits = sys.modules["numpy.random"], sys.modules["numpy.random.bit_generator"]
        for module, name in ((random, "seed"), (random, "setstate"), (numpy, "seed"), (numpy, "set_state")):
            self._watch(module, name, partial(self._seeds, module.__name__))
        self._watch(os, "urandom", self._draws)
        self._watch(random, "_urandom", self._draws)  # `secrets` and `random.SystemRandom` call it
        self._watch(bits, "randbits", self._draws)  # NumPy's generators call it if they are given no seed
        seed = random.Random.seed

        def seeds(this: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None:
                self._draws(None)
            seed(this, a, version)

        self._replaced.append((random.Random, "seed", seed))
        random.Random.seed = seeds  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for module, name, original in reversed(self._replaced):
            setattr(module, name, original)
        self._states = (
            random.getstate() if self._seeded.get("random") else None,
            sys.modules["numpy.random"].get_state() if self._seeded.get("numpy.random") else None,
        )

    def _watch(self, module: Any, name: str, note: Callable[[Any], None]) -> None:
        original = getattr(module, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            note(arguments[0] if arguments else None)
            return original(*arguments, **named)

        self._replaced.append((module, name, original))
        setattr(module, name, watched)

    def _seeds(self, module: str, seed: Any) -> None:
        if seed is None:
            self._draws(None)
        else:
            self._seeded[module] = True

    def _draws(self, _: Any) -> None:
        """Remember where a module of the app draws a random number from the system.

        Draws of the libraries that the app imports are ignored: forked processes may share these numbers.
        """
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.startswith(self._folder):
            self.drawn = self.drawn or f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"

    def reseed(self) -> None:
        """Seed the global generators anew, except those that the app has seeded: these keep their states."""
        python, numpy = self._states
        if python is not None:
            random.setstate(python)  # because Python seeds this generator anew after every fork
        if numpy is None:
            sys.modules["numpy.random"].seed()


def _run(program: Callable[[], Any], app: Any, identity: tuple[str, str, str]) -> Any:
    """Run `flwr-clientapp` in a forked process, with the app that is imported already."""
    use_channel()
    clientapps = importlib.import_module(_CLIENTAPP)
    load_anew = clientapps.get_load_client_app_fn
    unpack = clientapps.install_from_fab

    def loader(**settings: Any) -> Callable[[str, str, str], Any]:
        def load(*asked: str) -> Any:
            return app if asked == identity else load_anew(**settings)(*asked)

        return load

    def unpack_others(content: bytes, **settings: Any) -> Any:
        return unpack(content, **settings) if content else None  # the app server has unpacked the bundle

    replace(_CLIENTAPP, get_load_client_app_fn=loader, install_from_fab=unpack_others)
    return program()
