"""A process that has imported Flower already, and forks others from it that need not import it again.

A SuperNode starts a `flwr-clientapp` for every message, which spends over a second of CPU on importing
Flower before it does anything: with ten clients on two cores that is most of what the machine does. The
server of this file forks a child instead, which runs the very same command in a few milliseconds: a fresh
process with its own arguments, environment, folder and output, in which nothing is left of an earlier
message. Libraries in `LEARNED` that an app imported are imported by the server, too, for its next children.
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

# What Flower and apps import only when they come to it. Nothing of the app: its code comes in its bundle.
PRELOADED = ("numpy", "numpy.random", "pydantic", "httpcore", "encodings.cp437")
# What an app may make the server import: large, widely used, and safe to fork with once imported.
LEARNED = frozenset({"joblib", "pandas", "safetensors", "scipy", "sklearn", "torch", "torchvision"})
SOCKET = "fork-server.socket"
CHANNEL = "COHORT_CHANNEL"  # environment variable of a child: the descriptor of the socket that it was handed
_LONGEST = 1 << 20  # bytes of a request


class _Asker:
    """The server's side of a `Connection`."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.handed: list[int] = []  # descriptors
        self._text = b""

    def request(self) -> dict[str, Any] | None:
        """Return the request, if it has arrived as a whole. EOFError if there will be no more."""
        part, handed, _, _ = socket.recv_fds(self.connection, 65536, 3)
        self.handed += handed
        self._text += part
        if not part or len(self._text) > _LONGEST:
            raise EOFError
        if not self._text.endswith(b"\n"):
            return None
        text, self._text = self._text, b""
        request: dict[str, Any] = json.loads(text)
        return request

    def tell(self, **told: int) -> None:
        with contextlib.suppress(OSError):  # it is gone, or does not listen: the server waits for nobody
            self.connection.send(json.dumps(told).encode() + b"\n", socket.MSG_DONTWAIT)

    def close_handed(self) -> None:
        for descriptor in self.handed:
            os.close(descriptor)
        self.handed = []


class Server:
    """Forks a child for each request.

    Parameters
    ----------
    commands : Mapping[str, Callable[[], Any]]
        What it runs, by name; they find their arguments in `sys.argv`.
    folder : str | None
        Where to listen.
    connection : socket.socket | None
        The connection to serve, if it is this one only.
    """

    def __init__(
        self, commands: Commands, *, folder: str | None = None, connection: socket.socket | None = None
    ) -> None:
        preload()
        self._commands = commands
        self._imported = _learned()
        self._events = selectors.DefaultSelector()
        self._children: dict[int, _Asker] = {}  # by pid: who asked for it
        self._askers: set[_Asker] = set()
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
            os.chdir(folder)  # the name of a socket may have about 100 characters
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{SOCKET}.new")
            listener.listen(128)
            Path(f"{SOCKET}.new").rename(SOCKET)  # now it can be connected to
            self._sockets.append(listener)
            self._events.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def serve(self) -> Callable[[], Any] | None:
        """Serve until nobody can ask any more: None. In a child: return what it is to run."""
        gc.freeze()  # the children's collector must not touch, and so copy, what they share
        while self._listens or self._askers:
            for key, _ in self._events.select():
                if run := key.data():
                    become: Callable[[], Any] = run
                    return become
        return None

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was gone before its turn came
            self._add(listener.accept()[0])

    def _add(self, connection: socket.socket) -> None:
        asker = _Asker(connection)
        self._askers.add(asker)
        self._events.register(connection, selectors.EVENT_READ, lambda: self._answer(asker))

    def _answer(self, asker: _Asker) -> Callable[[], Any] | None:
        try:
            request = asker.request()
        except (OSError, EOFError, ValueError):  # gone, perhaps in mid-sentence
            self._events.unregister(asker.connection)
            self._askers.discard(asker)
            asker.close_handed()
            asker.connection.close()
            return None
        if request is None:
            return None
        pid = os.fork()
        if pid == 0:
            return self._become(request, asker)
        self._children[pid] = asker
        asker.close_handed()
        return None

    def _reap(self) -> None:
        self._ends.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if asker := self._children.pop(pid, None):
                    asker.tell(pid=pid, code=os.waitstatus_to_exitcode(status))

    def _learn(self) -> None:
        for name in json.loads(self._notes.recv(_LONGEST)):
            if name not in self._imported:
                self._imported.add(name)  # once is enough, whatever comes of it
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        gc.freeze()

    def _become(self, request: dict[str, Any], asker: _Asker) -> Callable[[], Any]:
        """Turn this child into the process that was asked for, up to the first line of its code."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request["own_session"]:
            os.setsid()
        asker.tell(
            pid=os.getpid(), number=request["number"]
        )  # only now: whoever knows it may signal the group
        channel = asker.handed.pop() if len(asker.handed) > 2 else None
        for target, descriptor in enumerate(asker.handed, start=1):
            os.dup2(descriptor, target)
        asker.close_handed()
        self._events.close()
        for each in (*self._sockets, *(each.connection for each in self._askers)):
            each.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        if channel is not None:
            os.environ[CHANNEL] = str(channel)
        os.chdir(request["folder"])
        sys.argv = request["command"]
        with contextlib.suppress(OSError):  # Linux: what `top` and `ps -o comm` show; 15 letters
            Path("/proc/self/comm").write_text(sys.argv[0])
        # The app may have modules of the same name as this project's.
        for name in [name for name in sys.modules if name.partition(".")[0] == "deploy"]:
            del sys.modules[name]
        # The global generator was seeded by the import: without this all clients would draw the same.
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
    sys.exit(code)  # it is to be printed


def _leave(code: int, shared: set[str]) -> None:
    """End a child as Python ends, but leave alone what it has of the server.

    To free all of that, one object after the other, copies nearly all memory that they share: 80 MB, and
    two thirds of the time that a child takes which has little to do.

    Parameters
    ----------
    code : int
        What it exits with.
    shared : set[str]
        The names of the modules that the server had imported.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    own = gc.get_objects()  # without what is frozen
    kinds = {kind for kind in set(map(type, own)) if issubclass(kind, io.IOBase)}  # to ask each takes longer
    for file in [sys.stdout, sys.stderr, *(each for each in own if type(each) in kinds)]:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            file.flush()
    del own, file
    for name in set(sys.modules) - shared:
        if name.partition(".")[0] not in LEARNED:
            sys.modules.pop(name, None)
    gc.collect()  # whatever else the app did not end
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
