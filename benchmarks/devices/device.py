"""A simulated device: it speaks the Fleet API as a SuperNode of this project does, and trains nothing.

A device has its own key and TLS connection. A heartbeat is always under way, and a request for messages
whenever the device has no message. The device fetches the objects of a message, waits, and sends a model of
the same size back. Many devices run on one event loop. Two things are cheaper than on a real device: a device
makes a new signature only once a minute (the server checks the signature of each request), and the devices of
a process share the decoded model of a round.
"""

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    get_object_type_from_object_content,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from deploy.fleet import wire
from deploy.fleet.duties.held_requests import LONGEST_LONG
from deploy.fleet.duties.joined_objects import CARRIED, MOST, SEPARATOR, join, joined, split
from deploy.fleet.protocol import names_in
from deploy.fleet.supernode.connection import OPTIONS
from deploy.fleet.supernode.node import LONGEST_IDLE, PAUSE_SHARE, SHORTEST_IDLE
from deploy.fleet.supernode.transfers import FIRST_RETRY, LONGEST_RETRY
from deploy.flower.patches.shared import LOOK
from strategies.clients.reports import STATUS, Report
from strategies.flower.messages import write_report

Calls = dict[str, Callable[..., Any]]

SIGNED = 60.0  # s for which a device uses the same signature
INTERVAL = 30.0  # s, the interval of heartbeats that a SuperNode states
AGAIN = 1.0  # s between two attempts to send a request
PATIENCE = 120.0  # s of failures, after which a request is given up
HELD = 15.0  # s; a request that fails later than this was held by a server that has died since
LARGEST = -1  # gRPC: no limit of the size of an answer
KEPT = 2  # decoded models in the cache
EXAMPLES = 100  # samples that each device claims to hold
CHANGE = 1e-4  # added to each number of a model, so all devices' updates have almost the same direction


class Load:
    """The settings of all devices of a process, and what happened to their messages.

    `authority`: the authority's certificate (PEM). `delay`: seconds until the reply to a message. `at_once`:
    how many devices may connect at the same time. `counts`: "requests" that were sent; messages "received",
    "answered", and "abandoned" because their device left; "failed STATUS": requests that failed with this
    gRPC status; "left" and "died": see `load.come_and_go`. `online`: the node ids of the devices that are
    online.
    """

    def __init__(self, authority: bytes, delay: float, at_once: int) -> None:
        self.delay = delay
        self.credentials = grpc.ssl_channel_credentials(authority)
        self.connecting = asyncio.Semaphore(at_once)
        self.version = RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()
        self.counts: Counter[str] = Counter()
        self.online: set[int] = set()
        self._models: OrderedDict[str, dict[str, np.ndarray[Any, Any]]] = OrderedDict()

    def model(self, contents: dict[str, bytes]) -> dict[str, np.ndarray[Any, Any]] | None:
        """Return the decoded arrays of a message from its objects by id, which must not change, or None."""
        name = next(
            (n for n, each in contents.items() if get_object_type_from_object_content(each) == "ArrayRecord"),
            None,
        )
        if name is None:
            return None
        if name not in self._models:
            record = inflate_object_from_contents(name, contents, keep_object_contents=True)
            assert isinstance(record, ArrayRecord)
            self._models[name] = {key: array.numpy() for key, array in record.items()}
            if len(self._models) > KEPT:
                self._models.popitem(last=False)
        return self._models[name]


class Device:
    """A simulated device, with a registered name, which it also claims as its identity, and key.

    `number` is the seed of its random numbers, by which its updates differ from those of others. `address`:
    HOST:PORT of the Fleet API.
    """

    def __init__(
        self, name: str, number: int, key: EllipticCurvePrivateKey, load: Load, address: str
    ) -> None:
        self.name, self._address = name, address
        self._key, self._load = key, load
        self._public = public_key_to_bytes(key.public_key())
        self._random = np.random.default_rng(number)
        self._signed = -SIGNED
        self._metadata: tuple[tuple[str, str | bytes], ...] = ()
        self._runs: set[int] = set()  # the runs whose app the device has fetched
        self._node = Node()
        self._last_message = 0.0  # when the last message came, by time.monotonic(), s

    async def live(self) -> None:
        """Come online and serve messages until this task is cancelled; then leave without a sign."""
        options = {**OPTIONS, "grpc.use_local_subchannel_pool": 1, "grpc.max_receive_message_length": LARGEST}
        channel = grpc.aio.secure_channel(
            self._address, self._load.credentials, options=list(options.items())
        )
        beats: asyncio.Task[None] | None = None
        calls = wire.calls(channel)
        try:
            async with self._load.connecting:
                request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=INTERVAL)
                activated = await self._ask(calls["ActivateNode"], request)
            self._node = Node(node_id=activated.node_id)
            beats = asyncio.create_task(self._beat(calls))
            self._load.online.add(self._node.node_id)
            self._last_message = time.monotonic()
            await self._serve(calls)
        finally:
            self._load.online.discard(self._node.node_id)
            if beats is not None:
                beats.cancel()
            await channel.close(None)

    async def _beat(self, calls: Calls) -> None:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=INTERVAL)
        while True:
            began = time.monotonic()
            extra = wire.HELD, wire.LONG
            await self._ask(calls["SendNodeHeartbeat"], request, timeout=LONGEST_LONG + 10.0, extra=extra)
            if time.monotonic() - began < LOOK:  # the heartbeat was not held
                await asyncio.sleep(0.8 * INTERVAL)

    async def _serve(self, calls: Calls) -> None:
        while True:
            began = time.monotonic()
            pull = PullMessagesRequest(node=self._node)
            response = await self._ask(calls["PullMessages"], pull, extra=(wire.LONG, wire.WHOLE))
            ended = time.monotonic()
            if response.messages_list:
                self._last_message = ended
                self._load.counts["received"] += 1
                try:
                    await self._answer(calls, response)
                except asyncio.CancelledError:
                    self._load.counts["abandoned"] += 1
                    raise
                self._load.counts["answered"] += 1
            elif ended - began < LOOK:  # the request was not held; pause as a SuperNode does
                pause = PAUSE_SHARE * (ended - self._last_message)
                await asyncio.sleep(min(max(pause, SHORTEST_IDLE), LONGEST_IDLE))

    async def _answer(self, calls: Calls, response: Any) -> None:
        asked, tree = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
        run = asked.metadata.run_id
        if run not in self._runs:
            found = await self._ask(calls["GetRun"], GetRunRequest(node=self._node, run_id=run))
            fab = GetFabRequest(node=self._node, hash_str=found.run.fab_hash, run_id=run)
            await self._ask(calls["GetFab"], fab)
            self._runs.add(run)
        names, carried = names_in(tree), wire.carried(response)
        contents = dict(zip(names, split(carried), strict=True)) if carried else {}
        missing = [name for name in names if name not in contents]
        while missing:
            names = missing[:MOST]
            request = PullObjectRequest(node=self._node, run_id=run, object_id=SEPARATOR.join(names))
            response = await self._ask(calls["PullObject"], request)
            if response.object_available:
                content = response.object_content
                found = split(content) if len(names) > 1 else [content]
            else:  # the answer to a joined request does not tell an unknown object
                found = [await self._fetch(calls, run, names[0])]
            contents.update(zip(names, found, strict=False))
            missing = missing[len(found) :]
        confirm = ConfirmMessageReceivedRequest(
            node=self._node, run_id=run, message_object_id=asked.metadata.message_id
        )
        await self._ask(calls["ConfirmMessageReceived"], confirm)
        began = time.monotonic()
        if self._load.delay:
            await asyncio.sleep(self._load.delay)
        reply = Message(self._content(asked.metadata.message_type, contents), reply_to=asked)
        await self._send(calls, reply, time.monotonic() - began, carries=bool(carried))

    async def _fetch(self, calls: Calls, run: int, name: str) -> bytes:
        request, pause = PullObjectRequest(node=self._node, run_id=run, object_id=name), FIRST_RETRY
        while True:
            response = await self._ask(calls["PullObject"], request)
            if not response.object_found:
                raise RuntimeError(f"{self.name}: an object of a message is missing")
            if response.object_available:
                content: bytes = response.object_content
                return content
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY)

    def _content(self, kind: str, contents: dict[str, bytes]) -> RecordDict:
        content = write_report(Report(client_id=self.name, num_examples=EXAMPLES))
        arrays = self._load.model(contents)
        if kind == STATUS or arrays is None:
            return content
        changed = {}
        for name, array in arrays.items():
            copy = array + np.float32(CHANGE)
            copy.reshape(-1)[:1] += self._random.uniform(0.0, CHANGE)  # all replies of a process differ
            changed[name] = Array(copy)
        content["arrays"] = ArrayRecord(changed)
        return content

    async def _send(self, calls: Calls, reply: Message, seconds: float, *, carries: bool) -> None:
        with no_object_id_recompute():  # hash each object once
            name, tree = reply.object_id, get_object_tree(reply)
            objects = {each: found.deflate() for each, found in get_all_nested_objects(reply).items()}
        proto = message_to_proto(remove_content_from_message(reply))
        proto.metadata.message_id = name
        announced = PushMessagesRequest(
            node=self._node,
            messages_list=[proto],
            message_object_trees=[tree],
            clientapp_runtime_list=[seconds],
        )
        order = names_in(tree)
        if carries and len(order) <= MOST and sum(len(objects[each]) for each in order) <= CARRIED:
            wire.carry(announced, join(objects[each] for each in order))
        response = await self._ask(calls["PushMessages"], announced)
        missing = set(response.objects_to_push)
        for name, content in joined((each, objects[each]) for each in order if each in missing):
            push = PushObjectRequest(
                node=self._node,
                run_id=reply.metadata.run_id,
                object_id=name,
                object_content=content,
                session_id=response.session_id,
            )
            stored = await self._ask(calls["PushObject"], push)
            if not stored.stored:
                raise RuntimeError(f"{self.name}: an object of a reply was not stored")

    async def _ask(
        self, method: Any, request: Any, timeout: float | None = None, extra: tuple[tuple[str, str], ...] = ()
    ) -> Any:
        """Send a request until it succeeds or fails for `PATIENCE` s; UNAUTHENTICATED is raised at once."""
        until = math.inf
        while True:
            self._load.counts["requests"] += 1
            began = time.monotonic()
            try:
                return await method(request, timeout=timeout, metadata=self._signature() + extra)
            except grpc.aio.AioRpcError as error:
                self._load.counts[f"failed {error.code().name}"] += 1
                if time.monotonic() - began > HELD:
                    until = math.inf
                until = min(until, time.monotonic() + PATIENCE)
                if time.monotonic() > until or error.code() == grpc.StatusCode.UNAUTHENTICATED:
                    raise
            await asyncio.sleep(AGAIN)

    def _signature(self) -> tuple[tuple[str, str | bytes], ...]:
        if time.monotonic() - self._signed > SIGNED:
            stamp = now().isoformat()
            self._metadata = (
                *self._load.version,
                (wire.PUBLIC_KEY, self._public),
                (wire.TIME_STAMP, stamp),
                (wire.SIGNATURE, sign_message(self._key, stamp.encode())),
            )
            self._signed = time.monotonic()
        return self._metadata
