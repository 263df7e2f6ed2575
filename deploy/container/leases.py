"""A lease gives a container the name of one client, and the key service gives it this client's private key.

`docker compose up --scale client=N` starts identical containers. The name that a container leases determines
its key, its Flower node and its part of the data. A lease is a lock on a file: only one container at a time
can have the lock, and the kernel releases it when the container ends. The file contains the name of its last
holder, so that a restarted container becomes the same client again. Containers open the files for reading
only. To get its key, a container proves that it holds a lease: it sends the descriptor of the locked file
over a Unix socket. The key service then also writes the holder's name.
"""

import contextlib
import fcntl
import os
import socket
import stat
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SOCKET = "keys.socket"  # the name of the socket in the folder of the leases
TIMEOUT = 5.0  # s to wait for the other side of a connection
CONNECTIONS = 64  # the most open connections, each with a thread; a further connection closes the oldest
BACKLOG = 1024  # the most connections that wait to be accepted
PATIENCE = 60.0  # s for which a container asks again while the service is busy
PAUSE = 0.1  # s to wait after a connection could not be accepted, or before a container asks again
MAX_HOLDER = 255  # the longest name of a container, bytes
# Seconds to wait while another container takes a name. A container that hangs must not block the others.
WAIT = 10.0
LOOK = 0.05  # seconds between two checks whether the other container has finished


class Lease(NamedTuple):
    """A client's name that belongs to this process until the process ends or closes the descriptor."""

    name: str
    descriptor: int
    """That of the locked file."""


def prepare(folder: Path, names: Sequence[str]) -> None:
    """Make the missing files: one for each name, and one for the lock of `_one_at_a_time`."""
    for name in (".lock", *names):
        (folder / name).touch()


def take(folder: Path, names: Sequence[str], holder: str) -> Lease | None:
    """Take a lease on a free name.

    `folder`: the folder of the leases, which all containers on a machine share. `names`: the client names. If
    several names are equally suitable, the first of them is taken. `holder`: the name of this container,
    which stays the same when the container restarts.

    Returns the lease on a free name: preferably the name that `holder` had last, then a name that was never
    taken, then a name whose last holder has ended. None if no name is free.
    """
    with _one_at_a_time(folder):
        last = {name: (folder / name).read_text() for name in names}
        for name in sorted(names, key=lambda name: (last[name] != holder, last[name] != "")):
            descriptor = os.open(folder / name, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            return Lease(name, descriptor)
    return None


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Execute the block in one container at a time, so that each gets the most suitable of the free names.

    A container that has waited for `WAIT` seconds executes the block in any case.
    """
    end = time.monotonic() + WAIT
    with (folder / ".lock").open() as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    break  # the locks on the names still keep two containers from taking one name
                time.sleep(LOOK)
        yield


def serve(leases: Path, keys: Path, names: Sequence[str]) -> None:
    """Answer the requests of containers. This function never returns.

    `leases`: the folder of the leases. The clients' containers cannot write into it. `keys`: the folder of
    the private keys. The clients' containers cannot read it.
    """
    path = leases / SOCKET
    path.unlink(missing_ok=True)  # the socket of an earlier service
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o777)
        listening.listen(BACKLOG)
        service = _Service(leases, keys, names)
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # such as a lack of free descriptors
                time.sleep(PAUSE)
            else:
                service.accept(connection)


def ask_until_answered(leases: Path, descriptor: int, holder: str) -> str:
    """Ask the key service again and again for `PATIENCE` seconds, and return the private key.

    Another container may keep the service so busy that connections are closed, or cannot be opened.
    The parameters and errors are those of `ask`.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return ask(leases, descriptor, holder)
        except OSError:
            if time.monotonic() >= end:
                raise
        time.sleep(PAUSE)


def ask(leases: Path, descriptor: int, holder: str) -> str:
    """Ask the key service for a private key, and return the key.

    Raises OSError if the service does not answer in time, or if it refuses.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(str(leases / SOCKET))
        socket.send_fds(connection, [holder.encode()], [descriptor])
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            key = answer.read().decode()
    if not key:
        raise PermissionError("the key service does not hand out a key for this lease")
    return key


class _Service:
    """Answers each connection in a thread of its own, so that a silent container does not delay others."""

    def __init__(self, leases: Path, keys: Path, names: Sequence[str]) -> None:
        self._leases, self._keys, self._names = leases, keys, names
        self._open: OrderedDict[socket.socket, None] = OrderedDict()
        self._lock = threading.Lock()
        # Only one thread checks leases at a time. A check locks the file of a free lease for a moment. A
        # second check at that moment could mistake this lock for that of a container, and hand out the key.
        self._checking = threading.Lock()

    def accept(self, connection: socket.socket) -> None:
        """Answer a connection in a new thread. If too many connections are open, close the oldest one."""
        connection.settimeout(TIMEOUT)
        with self._lock:
            self._open[connection] = None
            if len(self._open) > CONNECTIONS:
                oldest, _ = self._open.popitem(last=False)
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its own thread then closes it
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except RuntimeError:  # the system cannot start another thread
            self._close(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            # The errors mean that the container has closed the connection, was silent, or has sent nonsense.
            with connection, contextlib.suppress(OSError, UnicodeDecodeError):
                self._answer(connection)
        finally:
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)
        connection.close()

    def _answer(self, connection: socket.socket) -> None:
        """Receive a container's name and descriptor.

        If the container holds a lease, write the container's name into the file of the lease, and send the
        key of the leased client.
        """
        message, descriptors, _, _ = socket.recv_fds(connection, MAX_HOLDER, 1)
        try:
            with self._checking:
                held = [
                    name
                    for name in self._names
                    if descriptors and _holds(descriptors[0], self._leases / name)
                ]
            if held:
                (self._leases / held[0]).write_text(message.decode())
                connection.sendall((self._keys / held[0]).read_bytes())
        finally:
            for each in descriptors:
                close(each)


def close(descriptor: int) -> None:
    """Close a descriptor at once, even a socket that a container sent with an SO_LINGER of hours."""
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        with socket.socket(fileno=descriptor) as sent, contextlib.suppress(OSError):
            sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    else:
        os.close(descriptor)


def _holds(descriptor: int, lease: Path) -> bool:
    """Tell whether the descriptor belongs to the lease's file and holds the lock on this file."""
    with lease.open("rb") as own:
        if not os.path.samestat(os.fstat(descriptor), os.fstat(own.fileno())):
            return False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False  # nobody has the lock
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # only the holder can lock it again
            return True
    return False
