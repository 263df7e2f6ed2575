"""The fork server: a process that has imported Flower and forks children, which need not import it again.

In stock Flower, a SuperNode starts a process `flwr-clientapp` for every message, and each process spends over
a second of CPU time on importing Flower. A forked child begins to run its command after a few milliseconds.
Each child has its own arguments, environment, working directory and output, and keeps nothing from earlier
children. When an app in a child imports a library of `LEARNED`, the server imports that library too, for
later children.

This file runs as a script, so it does not import this project at its top. Other programs use the fork server
through `deploy.flower.fork_client`.
"""

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
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

Commands = Mapping[str, Callable[[], Any]]

# Modules that Flower and apps import only while they run
PRELOADED = ("numpy", "numpy.random", "pydantic", "httpcore", "encodings.cp437")
# Libraries that the server imports after an app has imported them. They are large and widely used, and a
# process that has imported them can safely fork.
LEARNED = frozenset({"joblib", "pandas", "safetensors", "scipy", "sklearn", "torch", "torchvision"})
SOCKET = "fork-server.socket"
# The environment variable with the descriptor of a child's channel: a socket between the child and its
# requester.
CHANNEL = "COHORT_CHANNEL"
# The environment variable with the descriptor of another socket, set only in a child that several requesters
# share. Over this socket, the server sends the child the channels of later requesters.
CHANNELS = "COHORT_CHANNELS"
_LONGEST = 1 << 20  # the most bytes that a request, or a child's note of its imports, may have


class _Requester:
    """A process that is connected to the server, and the file descriptors that it sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.descriptors: list[int] = []
        self._text = b""

    def request(self) -> dict[str, Any] | None:
        """Read from the connection. Return the request if it is complete now, and None otherwise.

        Raises EOFError if the connection is closed or the request is too long, ValueError or RecursionError
        if the request is not JSON.
        """
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
        with contextlib.suppress(OSError):  # the requester has ended or does not read: drop the message
            self.connection.send(json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT)

    def close_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class _Shared:
    """A child that several requesters share, and the server's end of the socket for their channels."""

    def __init__(self, pid: int, channels: socket.socket) -> None:
        self.pid, self.channels = pid, channels

    def take(self, channel: int) -> bool:
        """Send a channel to the child, and return whether the child can receive it."""
        try:
            socket.send_fds(self.channels, [b"c"], [channel], socket.MSG_DONTWAIT)
        except OSError:  # the child has ended, or does not read
            return False
        return True


class Server:
    """Forks a child for each request.

    `commands`: under the name of each command, the function that runs it. The function reads its arguments
    from `sys.argv`. `folder`: the folder whose socket `SOCKET` accepts connections. (default: the server
    accepts no connections) `connection`: a connection that the server serves from its start. `channels`: a
    socket over which the file descriptors of further connections come. `welcome`: what the server sends over
    each connection that comes over `channels`. `prepare`: what each child does before it runs its command.
    (default: forget this project's modules, and seed NumPy's global generator)
    """

    def __init__(
        self,
        commands: Commands,
        *,
        folder: str | None = None,
        connection: socket.socket | None = None,
        channels: socket.socket | None = None,
        welcome: bytes = b"",
        prepare: Callable[[], None] | None = None,
    ) -> None:
        preload()
        self._commands = commands
        self._prepare = prepare or _prepare
        self._shared: dict[str, _Shared] = {}
        self._imported = _learned(sys.modules)
        self._events = selectors.DefaultSelector()
        self._children: dict[int, _Requester] = {}  # by process id: the requester of the child
        self._requesters: set[_Requester] = set()
        self._sockets: list[socket.socket] = []  # sockets that are not connections; a child closes them
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
        if channels is not None:
            self._sockets.append(channels)
            self._events.register(
                channels, selectors.EVENT_READ, lambda: self._take_channel(channels, welcome)
            )
        if folder is not None:
            os.chdir(folder)  # the path of a socket may have only about 100 characters
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{SOCKET}.new")
            Path(f"{SOCKET}.new").chmod(0o600)  # whoever connects runs commands as this user
            listener.listen(128)
            Path(f"{SOCKET}.new").rename(SOCKET)  # requesters can find the socket from now on
            self._sockets.append(listener)
            self._events.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def serve(self) -> Callable[[], Any] | None:
        """Answer requests. In the server, return None at the end; in a child, return its command's function.

        A server with a folder serves until its process is ended. A server without a folder serves until all
        its connections are closed.
        """
        gc.freeze()  # garbage collection in a child would write to shared objects, and so copy their memory
        while self._listens or self._requesters:
            for key, _ in self._events.select():
                if run := key.data():
                    become: Callable[[], Any] = run
                    return become
        return None

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the requester closed the connection before it was accepted
            self._add(listener.accept()[0])

    def _add(self, connection: socket.socket) -> None:
        requester = _Requester(connection)
        self._requesters.add(requester)
        self._events.register(connection, selectors.EVENT_READ, lambda: self._answer(requester))

    def _take_channel(self, channels: socket.socket, welcome: bytes) -> None:
        _, descriptors, _, _ = socket.recv_fds(channels, 1, 1)
        if not descriptors:  # no further connections will come
            self._events.unregister(channels)
            return
        connection = socket.socket(fileno=descriptors[0])
        with contextlib.suppress(OSError):  # the requester has ended
            connection.send(welcome, socket.MSG_DONTWAIT)
        self._add(connection)

    def _answer(self, requester: _Requester) -> Callable[[], Any] | None:
        try:
            request = requester.request()
        # The connection is closed, or the request is bad.
        except (OSError, EOFError, ValueError, RecursionError):
            self._events.unregister(requester.connection)
            self._requesters.discard(requester)
            requester.close_descriptors()
            requester.connection.close()
            return None
        if request is None:
            return None
        ours = its = None
        asked = request.get("shared") if isinstance(request, dict) else None
        shared = asked if isinstance(asked, str) and len(requester.descriptors) > 2 else ""
        if shared:
            if (child := self._shared.get(shared)) and child.take(requester.descriptors[-1]):
                requester.send(pid=child.pid, number=request["number"])
                requester.close_descriptors()
                return None
            ours, its = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            if ours is not None and its is not None:
                ours.close()
                request["environment"][CHANNELS] = str(its.detach())
            return self._become(request, requester)
        self._children[pid] = requester
        requester.close_descriptors()
        if ours is not None and its is not None:
            its.close()
            self._forget(shared)
            self._shared[shared] = _Shared(pid, ours)
            self._sockets.append(ours)
        return None

    def _forget(self, shared: str) -> None:
        """Send no more channels to a child that several requesters share."""
        if child := self._shared.pop(shared, None):
            self._sockets.remove(child.channels)
            child.channels.close()

    def _reap(self) -> None:
        self._ends.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                for shared in [name for name, child in self._shared.items() if child.pid == pid]:
                    self._forget(shared)
                if requester := self._children.pop(pid, None):
                    requester.send(pid=pid, code=os.waitstatus_to_exitcode(status))

    def _learn(self) -> None:
        for name in json.loads(self._notes.recv(_LONGEST)):
            if name not in self._imported:
                self._imported.add(name)  # first, so that a failing import is not repeated
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        gc.freeze()

    def _become(self, request: dict[str, Any], requester: _Requester) -> Callable[[], Any]:
        """Turn this child into the requested process, and return the function that runs its command."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request["own_session"]:
            os.setsid()
        # After `setsid`: once the requester knows the process id, it may signal the process group of this id.
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
        with contextlib.suppress(OSError):  # on Linux, set the name that `top` and `ps -o comm` show
            Path("/proc/self/comm").write_text(sys.argv[0])
        # At its end, the child must not run the finalizers that it has from the server. With torch, they
        # would take 50 ms.
        self._finalizers = weakref.finalize._registry  # type: ignore[attr-defined]
        weakref.finalize._registry = {}  # type: ignore[attr-defined]
        self._prepare()
        return lambda: self._run(self._commands[sys.argv[0]])

    def _run(self, command: Callable[[], Any]) -> Any:
        last = next(reversed(sys.modules))
        try:
            return command()
        finally:
            if new := sorted(_learned(_new_modules(last)) - self._imported):
                with contextlib.suppress(OSError):
                    self._to_notes.send(json.dumps(new).encode(), socket.MSG_DONTWAIT)


def _prepare() -> None:
    # The app may have a package `deploy` of its own, so this project's package must not be loaded.
    for name in [name for name in sys.modules if name.partition(".")[0] == "deploy"]:
        del sys.modules[name]
    # NumPy seeded its global generator when the server imported it. Without a new seed, all children would
    # draw the same numbers.
    sys.modules["numpy.random"].seed()


def preload() -> None:
    """Import the modules of `PRELOADED`, which apps import while they run."""
    for module in PRELOADED:
        importlib.import_module(module)


def _learned(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] in LEARNED}


def run(server: Server) -> NoReturn:
    """Let a server answer requests until its end, then exit. In a child, run its command, then exit."""
    command = server.serve()
    if command is None:
        sys.exit(0)
    last = next(reversed(sys.modules))
    code: Any
    try:
        code = command()
    except SystemExit as ended:
        code = ended.code
    if code is None or isinstance(code, int):
        _leave(code or 0, last)
    sys.exit(code)  # not a number: Python prints it and exits with 1


def _new_modules(last: str) -> list[str]:
    """Return the names of the modules that were imported after module `last`.

    Reading all names would write to their reference counts, and so copy much of the shared memory.
    """
    new = []
    for name in reversed(sys.modules):
        if name == last:
            break
        new.append(name)
    return new


def _leave(code: int, last: str) -> None:
    """End a child as Python would, but do not free the objects that the child shares with the server.

    Freeing these objects would copy nearly all of the shared memory (80 MB). `last` names the module that the
    server had imported last before the fork.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for non-daemon threads
    atexit._run_exitfuncs()
    own = gc.get_objects()  # without the objects of the server, which are frozen
    kinds = {kind for kind in set(map(type, own)) if issubclass(kind, io.IOBase)}  # faster than isinstance
    for file in [sys.stdout, sys.stderr, *(each for each in own if type(each) in kinds)]:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # the file is None or closed
            file.flush()
    del own, file
    for name in _new_modules(last):
        if name.partition(".")[0] not in LEARNED:
            sys.modules.pop(name, None)
    gc.collect()  # runs the finalizers of objects that the app left
    os._exit(code & 0xFF)


def _main(module: str, where: str, *names: str) -> None:
    if where.isdigit():
        # Ctrl-C in a terminal reaches the server too. The server ends with the process that started it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    commands = importlib.import_module(module).commands(names)
    del sys.path[0]
    if where.isdigit():
        run(Server(commands, connection=socket.socket(fileno=int(where))))
    run(Server(commands, folder=where))


if __name__ == "__main__":
    _main(*sys.argv[1:])
