"""The fork server: a process that has imported Flower and forks children that need not import it again.

A SuperNode starts a `flwr-clientapp` for every message, which spends over a second of CPU time on importing
Flower: with ten clients on two cores, most of the machine's work. The fork server instead forks a child that
runs the same command after a few milliseconds: a fresh process with its own arguments, environment, folder
and output, in which nothing is left of an earlier message. When an app imports a library of `LEARNED`, the
server imports it too, for later children.

This file runs as a script and imports the rest of the project by name only; `deploy.flower.forking` is how
other programs use it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Commands = Mapping[str, Callable[[], Any]]

# What Flower and apps import late. Nothing of the app: its code comes in its bundle.
PRELOADED = ("numpy", "numpy.random", "pydantic", "httpcore", "encodings.cp437")
# What the server imports after an app did: large, widely used, and safe to fork once imported.
LEARNED = frozenset({"joblib", "pandas", "safetensors", "scipy", "sklearn", "torch", "torchvision"})
SOCKET = "fork-server.socket"
CHANNEL = "COHORT_CHANNEL"  # environment variable of a child: the descriptor of its channel's socket
_LONGEST = 1 << 20  # bytes of a request


class _Requester:
    """A connected process, and the descriptors that it sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.descriptors: list[int] = []
        self._text = b""

    def request(self) -> dict[str, Any] | None:
        """Return a request once it has arrived completely; EOFError if the connection is closed."""
        part, descriptors, _, _ = socket.recv_fds(self.connection, 65536, 3)
        self.descriptors += descriptors
        self._text += part
        if not part or len(self._text) > _LONGEST:
            raise EOFError
        if not self._text.endswith(b"\n"):
            return None
        text, self._text = self._text, b""
        request: dict[str, Any] = json.loads(text)
        return request

    def send(self, **message: int) -> None:
        with contextlib.suppress(OSError):  # it has ended or does not read: the server must not block
            self.connection.send(json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT)

    def close_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class Server:
    """Forks a child for each request.

    Parameters
    ----------
    commands : Mapping[str, Callable[[], Any]]
        The functions that run the commands, by name; their arguments are in `sys.argv`.
    folder : str | None
        Where it listens for connections.
    connection : socket.socket | None
        A connection to serve. Without a folder, the server ends when this is closed.
    """

    def __init__(
        self, commands: Commands, *, folder: str | None = None, connection: socket.socket | None = None
    ) -> None:
        preload()
        self._commands = commands
        self._imported = _learned()
        self._events = selectors.DefaultSelector()
        self._children: dict[int, _Requester] = {}  # by process id
        self._requesters: set[_Requester] = set()
        self._sockets: list[socket.socket] = []  # all others
        self._listens = folder is not None
        self._ends, to_ends = socket.socketpair()
        self._notes, self._to_notes = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for each in (self._ends, to_ends):
            each.setblocking(False)
        self._sockets += [self._ends, to_ends, self._notes]
        self._events.register(self._ends, selectors.EVENT_READ, self._reap)
        self._events.register(self._notes, selectors.EVENT_READ, self._learn)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(to_ends.fileno(), warn_on_full_buffer=False)
        if connection is not None:
            self._add(connection)
        if folder is not None:
            os.chdir(folder)  # a socket's path may have about 100 characters
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{SOCKET}.new")
            listener.listen(128)
            Path(f"{SOCKET}.new").rename(SOCKET)  # from now on it accepts connections
            self._sockets.append(listener)
            self._events.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def serve(self) -> Callable[[], Any] | None:
        """Serve until nobody can connect any more, then return None; in a child, return its command."""
        gc.freeze()  # a collector that touched shared objects would copy their memory
        while self._listens or self._requesters:
            for key, _ in self._events.select():
                if run := key.data():
                    become: Callable[[], Any] = run
                    return become
        return None

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was closed before it was accepted
            self._add(listener.accept()[0])

    def _add(self, connection: socket.socket) -> None:
        requester = _Requester(connection)
        self._requesters.add(requester)
        self._events.register(connection, selectors.EVENT_READ, lambda: self._answer(requester))

    def _answer(self, requester: _Requester) -> Callable[[], Any] | None:
        try:
            request = requester.request()
        except (OSError, EOFError, ValueError):  # closed, perhaps within a request
            self._events.unregister(requester.connection)
            self._requesters.discard(requester)
            requester.close_descriptors()
            requester.connection.close()
            return None
        if request is None:
            return None
        pid = os.fork()
        if pid == 0:
            return self._become(request, requester)
        self._children[pid] = requester
        requester.close_descriptors()
        return None

    def _reap(self) -> None:
        self._ends.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if requester := self._children.pop(pid, None):
                    requester.send(pid=pid, code=os.waitstatus_to_exitcode(status))

    def _learn(self) -> None:
        for name in json.loads(self._notes.recv(_LONGEST)):
            if name not in self._imported:
                self._imported.add(name)  # tried once, whether or not it succeeds
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        gc.freeze()

    def _become(self, request: dict[str, Any], requester: _Requester) -> Callable[[], Any]:
        """Turn this child into the requested process; return the function that runs its command."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request["own_session"]:
            os.setsid()
        # Only now: whoever knows the process id may signal its group.
        requester.send(pid=os.getpid(), number=request["number"])
        channel = requester.descriptors.pop() if len(requester.descriptors) > 2 else None
        for target, descriptor in enumerate(requester.descriptors, start=1):
            os.dup2(descriptor, target)
        requester.close_descriptors()
        self._events.close()
        for each in (*self._sockets, *(each.connection for each in self._requesters)):
            each.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        if channel is not None:
            os.environ[CHANNEL] = str(channel)
        os.chdir(request["folder"])
        sys.argv = request["command"]
        with contextlib.suppress(OSError):  # Linux: the name in `top` and `ps -o comm`
            Path("/proc/self/comm").write_text(sys.argv[0])
        # The app may have modules of the same name as this project's.
        for name in [name for name in sys.modules if name.partition(".")[0] == "deploy"]:
            del sys.modules[name]
        # The import seeded the global generator: without this all clients would draw the same numbers.
        sys.modules["numpy.random"].seed()
        return lambda: self._run(self._commands[sys.argv[0]])

    def _run(self, command: Callable[[], Any]) -> Any:
        try:
            return command()
        finally:
            if new := sorted(_learned() - self._imported):
                with contextlib.suppress(OSError):
                    self._to_notes.send(json.dumps(new).encode(), socket.MSG_DONTWAIT)


def preload() -> None:
    """Import what apps import late."""
    for module in PRELOADED:
        importlib.import_module(module)


def _learned() -> set[str]:
    # A copy: another thread may import something.
    return {name for name in list(sys.modules) if name.partition(".")[0] in LEARNED}


def run(server: Server) -> NoReturn:
    """Serve until nobody is connected, then exit; in a child: run its command, then exit."""
    command = server.serve()
    if command is None:
        sys.exit(0)
    shared = set(sys.modules)
    code: Any
    try:
        code = command()
    except SystemExit as ended:
        code = ended.code
    if code is None or isinstance(code, int):
        _leave(code or 0, shared)
    sys.exit(code)  # Python prints it


def _leave(code: int, shared: set[str]) -> None:
    """End a child as Python ends, but without freeing the objects that it shares with the server.

    Freeing them would copy nearly all of the shared memory: 80 MB, and two thirds of the time of a child that
    does little.

    Parameters
    ----------
    code : int
        The exit code.
    shared : set[str]
        The names of the modules that the server had imported.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for non-daemon threads
    atexit._run_exitfuncs()
    own = gc.get_objects()  # without the frozen ones
    kinds = {kind for kind in set(map(type, own)) if issubclass(kind, io.IOBase)}  # faster than isinstance
    for file in [sys.stdout, sys.stderr, *(each for each in own if type(each) in kinds)]:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it is None, or closed
            file.flush()
    del own, file
    for name in set(sys.modules) - shared:
        if name.partition(".")[0] not in LEARNED:
            sys.modules.pop(name, None)
    gc.collect()  # runs the finalizers of what the app left
    os._exit(code & 0xFF)


def _main(module: str, where: str, *names: str) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    commands = importlib.import_module(module).commands(names)
    del sys.path[0]
    if where.isdigit():
        run(Server(commands, connection=socket.socket(fileno=int(where))))
    run(Server(commands, folder=where))


if __name__ == "__main__":
    _main(*sys.argv[1:])
