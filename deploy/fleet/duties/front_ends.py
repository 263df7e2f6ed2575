"""One of several SuperLinks that share a database, and what it tells the others.

Each of these front ends has one connection to PostgreSQL on which it hears what has happened at the others
(NOTIFY): messages that have arrived for nodes, replies for ServerApps, nodes that have left or moved, keys
that were revoked. What is told is collected while the connection is busy. PostgreSQL loses a notification
only if this connection is lost. After that, and every `CATCH_UP` seconds, a front end looks into the tables.

On the same connection a front end says every `BEAT` seconds that it lives, and every `spread.LOOK` seconds
it counts who has how many devices. If it has not for
`postgres.LEASE` seconds, another one gives its nodes the time to return that they have after a restart. A
front end that is cut off from the database lets its nodes go there.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections import defaultdict
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from deploy.fleet import protocol
from deploy.fleet.duties import presence, spread
from deploy.fleet.storage import postgres, shared_registry
from deploy.fleet.storage.postgres import CHANNEL, LEASE, NOW

if TYPE_CHECKING:
    from deploy.fleet.duties.duties import Duties
    from deploy.fleet.storage.shared_registry import SharedRegistry

BEAT = 1.5  # s between two signs of life
CATCH_UP = 30.0  # s between two looks into the tables
PAUSE = 1.0  # s until a lost connection is made again
_MOST = 7000  # the most bytes of a notification; PostgreSQL allows 8000
_TELL = f"SELECT pg_notify('{CHANNEL}', news) FROM unnest(%s::text[]) AS news"
_SEEN = f"UPDATE cohort_front_end SET seen = {NOW} WHERE name = %s"
_ADDRESS = (
    f"INSERT INTO cohort_address VALUES (%s, %s, %s, {NOW}) ON CONFLICT (home) DO UPDATE "
    "SET address = excluded.address, devices = excluded.devices, seen = excluded.seen"
)
_APPEAR = f"INSERT INTO cohort_front_end VALUES (%s, %s, %s, {NOW}) ON CONFLICT DO NOTHING"
_GONE = f"DELETE FROM cohort_front_end WHERE seen < {NOW} - {LEASE} RETURNING name, home"
_NODES_OF = "SELECT node_id FROM cohort_connection WHERE front_end = %s"
_RETURN = (
    "UPDATE node SET online_until = %s WHERE status = 'online' AND online_until > %s "
    f"AND node_id IN ({_NODES_OF})"
)
_END = "DELETE FROM cohort_front_end WHERE name = %s"
_WAITING = "SELECT DISTINCT dst_node_id FROM message_ins WHERE delivered_at = ''"
_MOVED = "SELECT node_id FROM cohort_connection WHERE front_end != %s AND node_id = ANY (%s)"
_REVOKED = (
    "SELECT node_id FROM node JOIN cohort_connection USING (node_id) "
    "WHERE front_end = %s AND status = 'unregistered'"
)


class FrontEnd:
    """A SuperLink, this process, as one of the front ends that share a database.

    `url`: the database's address. `home`: names the folder and the machine; the same after a restart.
    `authority`: the fingerprint of the authority of the server's certificates. `address`: host:port at which
    devices reach it; "": none of its own, so it takes no part in the spreading of devices.
    """

    def __init__(self, url: str, home: str, authority: str, address: str = "") -> None:
        self.url, self.home, self.authority, self.address = url, home, authority, address
        self.registry: SharedRegistry | None = None  # the invitations, if devices can use any
        self.name = uuid4().hex  # of this process
        self._news: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._wakes, self._waker = os.pipe()
        for each in (self._wakes, self._waker):
            os.set_blocking(each, False)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._beaten = 0.0  # the last sign of life (time.monotonic(), s)
        self._invited = False  # whether invitations were made or withdrawn elsewhere
        self._counted = 0.0  # the last look who has how many devices (time.monotonic(), s)
        self._let_go = 0.0  # when nodes were last let go (time.monotonic(), s)

    def tell(self, kind: str, what: object) -> None:
        """Tell the other front ends what has happened here. This never waits.

        `kind`: what has happened. `what`: to which node or run.
        """
        with self._lock:
            if not self._news:
                self._wake()
            self._news.append((kind, str(what)))

    def start(self, state: Any, duties: Duties) -> None:
        """Appear to the others, and hear what they tell, in a thread. `state` is the SuperLink's state."""
        self._state, self._duties = state, duties
        self._thread = threading.Thread(target=self._run, name="front end", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take leave of the others. Call this when the nodes have got time to return."""
        self._over.set()
        self._wake()
        if self._thread is not None:
            self._thread.join(timeout=postgres.CONNECT)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it will wake anyway
            os.write(self._waker, b"\0")

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with postgres.connect(self.url) as connection:
                    self._serve(connection)
            except Exception as error:  # such as a restart of the database
                getLogger("flwr").warning("The connection to the other front ends: %s", postgres.line(error))
                if time.monotonic() - self._beaten > LEASE:
                    self._let_nodes_go()
                self._over.wait(PAUSE)

    def _let_nodes_go(self) -> None:
        """Let some nodes look for another front end, whose held heartbeats would keep them here for minutes.

        Their heartbeats are answered. The next ones fail, as long as the database cannot be reached from
        here. A few nodes at a time: if all front ends have lost the database, they ask again and again.
        """
        if time.monotonic() - self._let_go < spread.LOOK:
            return
        self._let_go = time.monotonic()
        nodes = sorted(self._duties.presence.movable())
        for node in random.sample(nodes, min(spread.MOST, len(nodes))):
            self._duties.presence.answer(node)

    def _serve(self, connection: Any) -> None:
        connection.add_notify_handler(lambda note: self._hear(note.payload, note.pid, connection))
        connection.execute(f"LISTEN {CHANNEL}")
        self._state.forget_keys()
        caught_up, self._counted = -CATCH_UP, time.monotonic()
        while True:
            if time.monotonic() - self._beaten >= BEAT:
                self._beat(connection)
            if time.monotonic() - caught_up >= CATCH_UP:
                caught_up = time.monotonic()
                self._catch_up(connection)
            if time.monotonic() - self._counted >= spread.LOOK:
                self._counted = time.monotonic()
                self._spread(connection)
            if self._invited and self.registry is not None:
                self._invited = False
                self.registry.refresh()
            self._send(connection)
            if self._over.is_set():
                connection.execute(_END, (self.name,))
                return
            pause = max(0.0, self._beaten + BEAT - time.monotonic())
            ready, _, _ = select.select([connection.fileno(), self._wakes], [], [], pause)
            if self._wakes in ready:
                os.read(self._wakes, 4096)
            connection.pgconn.consume_input()
            while (note := connection.pgconn.notifies()) is not None:
                self._hear(note.extra.decode(), note.be_pid, connection)

    def _send(self, connection: Any) -> None:
        with self._lock:
            news, self._news = self._news, []
        if not news:
            return
        words: dict[str, dict[str, None]] = defaultdict(dict)  # by kind, each once
        for kind, what in news:
            words[kind][what] = None
        texts: list[str] = []
        for kind, each in words.items():
            text = kind
            for word in each:
                if len(text) + len(word) >= _MOST:
                    texts.append(text)
                    text = kind
                text += f" {word}"
            texts.append(text)
        try:
            connection.execute(_TELL, (texts,))
        except BaseException:
            with self._lock:
                self._news[:0] = news
            raise

    def _hear(self, text: str, sender: int, connection: Any) -> None:
        if sender == connection.info.backend_pid:
            return
        kind, *words = text.split()
        held = self._duties.held
        if kind == "left":
            held.wake_apps()
            return
        if kind == "came":
            self._counted = min(self._counted, time.monotonic() - spread.LOOK + spread.COMES)
            return
        if kind == shared_registry.INVITED:
            self._invited = True
            return
        for word in words:
            if kind == "round":
                run, _, number = word.partition(":")
                self._duties.past.note_round(int(run), int(number))
            elif kind == "moved":
                self._duties.moved_away(int(word))
            elif kind == "revoked":
                self._state.forget_keys()
                self._revoked(int(word))
            else:
                held.wake((kind, int(word)))

    def _beat(self, connection: Any) -> None:
        """Say that this front end lives, and look for others that do not."""
        now = time.monotonic()
        if not connection.execute(_SEEN, (self.name,)).rowcount:
            connection.execute(_APPEAR, (self.name, self.home, postgres.flower_version()))
            self.tell("came", 0)
            mine = connection.execute(_NODES_OF, (self.name,)).fetchall()
            self._duties.presence.renew([protocol.unsigned(node) for (node,) in mine])
        before, self._beaten = self._beaten, now
        if now - before > LEASE:
            return  # after an outage of the database, the others have not been able to say it either
        with connection.transaction():
            for name, home in connection.execute(_GONE).fetchall():
                nodes = len(connection.execute(_NODES_OF, (name,)).fetchall())
                now, seconds = time.time(), presence.RETURN + presence.RETURN_EACH * nodes
                count = connection.execute(_RETURN, (now + seconds, now + seconds, name)).rowcount
                text = "The front end %s is gone: its %d nodes have %.0f s to return"
                getLogger("flwr").warning(text, home, count, seconds)

    def _catch_up(self, connection: Any) -> None:
        """Do what notifications would have caused that were lost."""
        self._state.store_use()
        self._tell_address(connection)
        known = connection.execute(shared_registry.ADDRESSES).fetchall()
        self._duties.spread.known = [address for (address,) in known]
        if self.registry is not None:
            self.registry.refresh()
        for (node,) in connection.execute(_WAITING).fetchall():
            self._duties.held.wake(("node", protocol.unsigned(node)))
        held = [protocol.signed(node) for node in self._duties.held.nodes()]
        for (node,) in connection.execute(_MOVED, (self.name, held)).fetchall():
            self._duties.moved_away(protocol.unsigned(node))
        for (node,) in connection.execute(_REVOKED, (self.name,)).fetchall():
            self._duties.presence.answer(protocol.unsigned(node))

    def _revoked(self, node: int) -> None:
        """Let a node learn that it was revoked, and remove its file if it has joined here."""
        self._duties.presence.answer(node)
        if self.registry is not None and (name := self._state.name_of(node)):
            self.registry.forget(name, str(node))

    def _tell_address(self, connection: Any) -> None:
        """Tell the others this front end's address, and how many devices it has."""
        if self.address:
            devices = self._duties.presence.connected()
            connection.execute(_ADDRESS, (self.home, self.address, devices))

    def _spread(self, connection: Any) -> None:
        """Send some idle nodes away if others have clearly fewer."""
        self._tell_address(connection)
        loads = [spread.Load(*each) for each in connection.execute(shared_registry.LOADS).fetchall()]
        self._duties.spread.known = sorted({*self._duties.spread.known, *(each.address for each in loads)})
        count, better = spread.excess(loads, self.home)
        if count:
            idle = self._duties.presence.movable().intersection(self._duties.held.nodes())
            for node in self._duties.spread.choose(count, better, idle):
                self._duties.presence.answer(node)
