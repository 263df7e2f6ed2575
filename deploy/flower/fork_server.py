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
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Commands = Mapping[str, Callable[[], Any]]

# What Flower and apps import only when they come to it. Nothing of the app: its code comes in its bundle.
PRELOADED = ("numpy", "numpy.random", "pydantic", "httpcore", "encodings.cp437")
# What an app may make the server import: large, widely used, and safe to fork with once imported.
LEARNED = frozenset({"joblib", "pandas", "safetensors", "scipy", "sklearn", "torch", "torchvision"})
SOCKET = "warm.socket"
LINE = "COHORT_LINE"  # environment variable of a child: the descriptor of the socket that it was handed
_LONGEST = 1 << 20  # bytes of a request
_ABOUT_TO = 1.0  # seconds in which a server that lives tells of the end of a process


class Gone(Exception):  # noqa: N818
    """The server is gone; whatever it was asked for last may or may not have been started."""


class Connection:
    """The way to ask a server for processes. Threads may share it.

    Parameters
    ----------
    connected : socket.socket
        Connected to the server.
    child : int | None
        The server's process id, if it is a child of this process, and serves it alone.
    """

    def __init__(self, connected: socket.socket, child: int | None = None) -> None:
        self._socket = connected
        self._child = child
        self._text = b""
        self._codes: dict[int, int] = {}
        self._requests = 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> Connection:
        """Connect to the server that listens in `folder`; OSError if there is none."""
        connected = socket.socket(socket.AF_UNIX)
        try:
            with contextlib.chdir(folder):  # the name of a socket may have about 100 characters
                connected.connect(SOCKET)
        except OSError:
            connected.close()
            raise
        return cls(connected)

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: tuple[int, int] = (1, 2),
        own_session: bool = False,
        line: int | None = None,
    ) -> int:
        """Start a command and return its process' id.

        Parameters
        ----------
        command : Sequence[str]
            One of the server's, and its arguments.
        environment : Mapping[str, str] | None
            Its whole environment. (default: this process')
        output : tuple[int, int]
            The descriptors of its standard output and standard error. (default: this process')
        own_session : bool
            Whether it leads a session and a process group of its own. (default: it stays in the server's)
        line : int | None
            The descriptor of a socket that it is to have. It finds its number in the environment as `LINE`.

        Raises
        ------
        Gone
            If there is no server any more.
        """
        request: dict[str, Any] = {
            "command": list(command),
            "environment": dict(os.environ if environment is None else environment),
            "folder": str(Path.cwd()),
            "own_session": own_session,
        }
        with self._lock:
            self._requests += 1
            number = request["number"] = self._requests
            text = json.dumps(request).encode() + b"\n"
            try:
                handed = [*output] if line is None else [*output, line]
                sent = socket.send_fds(self._socket, [text], handed)
                self._socket.sendall(text[sent:])
            except OSError as error:
                raise Gone from error
            while True:
                told = self._next_line()
                if told.get("number") == number:
                    self._codes.pop(told["pid"], None)  # of one that had this number before
                    return told["pid"]
                self._note(told)

    def returncode(self, pid: int) -> int | None:
        """Return what a process exited with, None while it runs, and -SIGKILL if nobody knows any more."""
        with self._lock:
            code = self._told_code(pid, 0.0)
            if code is None:
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    # The server has taken note of its end, and may be about to tell of it.
                    code = self._told_code(pid, _ABOUT_TO)
                    return -signal.SIGKILL if code is None else code
            return code

    def _told_code(self, pid: int, seconds: float) -> int | None:
        """Return the exit code that the server has told of, or tells of within some seconds."""
        with contextlib.suppress(BlockingIOError, Gone):
            while pid not in self._codes and (
                b"\n" in self._text or select.select([self._socket], [], [], seconds)[0]
            ):
                self._note(self._next_line(socket.MSG_DONTWAIT))
        return self._codes.get(pid)

    def _note(self, told: dict[str, int]) -> None:
        if "code" in told:  # else it is the answer to a request whose caller was interrupted
            self._codes[told["pid"]] = told["code"]

    def _next_line(self, flags: int = 0) -> dict[str, int]:
        while b"\n" not in self._text:
            try:
                part = self._socket.recv(65536, flags)
            except BlockingIOError:
                raise
            except OSError as error:
                raise Gone from error
            if not part:
                raise Gone
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        told: dict[str, int] = json.loads(line)
        return told

    def close(self) -> None:
        """Ask no more. What was started goes on; a server that serves nobody else ends."""
        self._socket.close()
        if self._child is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._child, 0)


def serve_command(where: Path | int, names: Iterable[str]) -> list[str]:
    """Return the command that serves programs of these names, until it is ended.

    Parameters
    ----------
    where : Path | int
        The folder in which it listens for connections, or the descriptor of the only one, which it inherits
        and ends with.
    names : Iterable[str]
        Of `deploy.flower.launch.ALL`.
    """
    # -P: as for an installed command, this file's folder is no place to import from.
    return [sys.executable, "-P", str(Path(__file__).resolve()), str(where), *names]


def start_server(names: Iterable[str]) -> Connection:
    """Start a server in a process of its own, for this process alone; it ends with it."""
    ours, its = socket.socketpair()
    with its:
        command = serve_command(its.fileno(), names)
        child = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    return Connection(ours, child.pid)


def fork_server(commands: Commands) -> Connection:
    """Fork a server from this process, for it alone; it ends with it.

    It has what this process has imported, and shares that memory with it. Returns twice, so to speak: in
    the server's children it does not return, but runs what they are to run, and exits. To be called before
    there are other threads.
    """
    _preload()
    gc.freeze()  # neither's collector must touch, and so copy, what they share
    ours, its = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        # The terminal's Ctrl-C is for the process that it was forked from; this one ends with that.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _exit_with(_Server(commands, connection=its).serve())
    its.close()
    return Connection(ours, child)


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


class _Server:
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
        _preload()
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
        line = asker.handed.pop() if len(asker.handed) > 2 else None
        for target, descriptor in enumerate(asker.handed, start=1):
            os.dup2(descriptor, target)
        asker.close_handed()
        self._events.close()
        for each in (*self._sockets, *(each.connection for each in self._askers)):
            each.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        if line is not None:
            os.environ[LINE] = str(line)
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


def _preload() -> None:
    for module in PRELOADED:
        importlib.import_module(module)


def _learned() -> set[str]:
    # A copy: another thread may import something.
    return {name for name in list(sys.modules) if name.partition(".")[0] in LEARNED}


def _exit_with(run: Callable[[], Any] | None) -> None:
    """End this process: the server, or a child when it has run this."""
    if run is None:
        sys.exit(0)
    shared = set(sys.modules)
    code: Any
    try:
        code = run()
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


def _main(where: str, *names: str) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    commands = importlib.import_module("deploy.flower.launch").commands(names)
    del sys.path[0]
    if where.isdigit():
        server = _Server(commands, connection=socket.socket(fileno=int(where)))
    else:
        server = _Server(commands, folder=where)
    _exit_with(server.serve())


if __name__ == "__main__":
    _main(*sys.argv[1:])
