"""The Fleet API: what happens to each request, from its headers to the answer.

A method of `FleetService` gets a request that the front door has admitted. It reads from top to bottom: the
request is checked, answered from the SuperLink's state, and noted. A request that is held is answered with a
`Later`.
"""

from __future__ import annotations

from itertools import takewhile
from logging import getLogger
from typing import TYPE_CHECKING, Any

import grpc

from deploy.fleet import errors, protocol, wire
from deploy.fleet.duties import joined_objects
from deploy.fleet.duties.joined_objects import ENOUGH, MOST
from deploy.fleet.duties.presence import FOREVER
from deploy.fleet.errors import FleetError, RequestRefused
from deploy.fleet.use import Use
from deploy.flower.deferred_answers import after
from deploy.flower.patches.shared import remembered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.fleet.admission.reply_admission import ReplyAdmission
    from deploy.fleet.duties.duties import Duties
    from deploy.fleet.duties.enrolment import Enrolment
    from deploy.fleet.front_door import FrontDoor

SHORTEST, LONGEST = 10, 1800  # s between two heartbeats of a node, as in Flower


class FleetService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers the requests of the Fleet API."""

    def __init__(
        self,
        state_factory: Any,
        duties: Duties,
        replies: ReplyAdmission,
        door: FrontDoor,
        enrolment: Enrolment | None,
    ) -> None:
        self._states, self._duties, self._replies = state_factory, duties, replies
        self._door, self._enrolment = door, enrolment
        self._why_not_running = remembered(lambda run: state_factory.state().why_not_running(run))
        self._fab = remembered(lambda digest: state_factory.state().get_fab(digest), but=None)
        answers = {
            "RegisterNode": self.register_node,
            "ActivateNode": self.activate_node,
            "DeactivateNode": self.deactivate_node,
            "UnregisterNode": self.unregister_node,
            "SendNodeHeartbeat": self.send_node_heartbeat,
            "PullMessages": self.pull_messages,
            "PullObject": self.pull_object,
            "ConfirmMessageReceived": self.confirm_message_received,
            "PushMessages": self.push_messages,
            "PushObject": self.push_object,
            "GetRun": self.get_run,
            "GetFab": self.get_fab,
        }
        self._methods = {each.path: (each, answers[each.name]) for each in wire.METHODS.values()}

    def service(self, call: Any) -> Any:
        """Return gRPC's handler of a request whose headers have arrived; None if the method is unknown."""
        if self._enrolment is not None and (handler := self._enrolment.service(call)) is not None:
            return handler
        if call.method not in self._methods:
            return None
        return self._door.handler(call, *self._methods[call.method])

    def register_node(self, request: Any, node: int, context: Any) -> Any:
        """Refuse a registration: only the operator and invitations register nodes."""
        raise FleetError(errors.REGISTRATION_DISABLED, "A registered SuperNode asked for a registration")

    def unregister_node(self, request: Any, node: int, context: Any) -> Any:
        """Refuse an unregistration: only the operator unregisters nodes."""
        raise FleetError(errors.UNREGISTRATION_DISABLED, f"node_id={request.node_id}")

    def activate_node(self, request: Any, node: int, context: Any) -> Any:
        """Mark a node as online."""
        with self._door.waiting(context, node):
            self._duties.presence.wait_for_end(node)
        _check_interval(request.heartbeat_interval)
        if not self._states.state().activate(node, request.heartbeat_interval):
            raise FleetError(errors.NOT_ACTIVATED, f"SuperNode {node} could not be activated: it is online")
        getLogger("flwr").info("[Fleet.ActivateNode] Activated node_id=%s", node)
        return self._tell_addresses(wire.METHODS["ActivateNode"].response(node_id=node))

    def _tell_addresses(self, answer: Any, better: Sequence[str] = ()) -> Any:
        """Add the addresses of the front ends, if there are several."""
        if known := self._duties.spread.known:
            wire.tell_addresses(answer, known, better)
        return answer

    def deactivate_node(self, request: Any, node: int, context: Any) -> Any:
        """Mark a node as offline."""
        if not self._states.state().go_offline(node):
            raise FleetError(errors.NOT_DEACTIVATED, f"SuperNode {node} is not online")
        getLogger("flwr").info("[Fleet.DeactivateNode] Deactivated node_id=%s", node)
        return wire.METHODS["DeactivateNode"].response()

    def send_node_heartbeat(self, request: Any, node: int, context: Any) -> Any:
        """Keep a node online. If it asks for it, the answer is held as long as the node is connected."""
        state, presence = self._states.state(), self._duties.presence
        is_held = wire.HELD in map(tuple, context.invocation_metadata())
        if not is_held:
            _check_interval(request.heartbeat_interval)
        success = state.note_heartbeat(node, FOREVER if is_held else request.heartbeat_interval)
        answer = wire.METHODS["SendNodeHeartbeat"].response(success=success)
        if success and is_held:
            held = presence.hold(answer, node, context)
            return held.then(lambda held: self._tell_addresses(held, self._duties.spread.better(node)))
        if success:
            presence.heard(node, request.heartbeat_interval)
        return answer

    def pull_messages(self, request: Any, node: int, context: Any) -> Any:
        """Deliver the node's last message again if the node has not confirmed it, else the next one."""
        again = self._duties.unconfirmed.again
        answer = again(node)
        if answer is None:
            # An earlier request, whose connection was lost, may get the message in this moment.
            answer = self._duties.held.hold(node, context, lambda: again(node) or self._next_message(request))

        takes_objects = wire.WHOLE in map(tuple, context.invocation_metadata())

        def note(response: Any) -> Any:
            try:
                self._duties.delivered.note(node, response)
                self._replies.note_delivery(response, node)
                return self._with_objects(response) if takes_objects and response.messages_list else response
            except BaseException:  # such as a restart of the database
                self._duties.unconfirmed.not_sent(node)
                raise

        return after(answer, note)

    def _with_objects(self, response: Any) -> Any:
        """Return a copy of the answer that carries its message's objects; the answer if they are large."""
        state, run_id = self._states.state(), response.messages_list[0].metadata.run_id
        names = protocol.names_in(response.message_object_trees[0])
        contents = state.objects.first(names, ENOUGH) if len(names) <= MOST else []
        if len(contents) < len(names):
            return response
        whole = wire.METHODS["PullMessages"].response()
        whole.CopyFrom(response)
        wire.carry(whole, joined_objects.join(contents))
        state.note_use(run_id, Use(sent=sum(map(len, contents))))
        return whole

    def _next_message(self, request: Any) -> Any:
        state, node = self._states.state(), request.node.node_id
        answer = wire.METHODS["PullMessages"].response()
        with state.session():  # so that a message does not count as delivered after an error
            if (message := state.next_message(node)) is not None:
                tree = state.objects.tree_of(message.metadata.message_id)
                if tree is None:
                    text = "Message %s has no objects and is deleted"
                    getLogger("flwr").error(text, message.metadata.message_id)
                    state.delete_messages({message.metadata.message_id})
                else:
                    answer.messages_list.append(message)
                    answer.message_object_trees.append(tree)
                    use = Use(sent=answer.ByteSize(), received=request.ByteSize())
                    state.note_use(message.metadata.run_id, use)
        self._duties.unconfirmed.note(node, answer)
        return answer

    def pull_object(self, request: Any, node: int, context: Any) -> Any:
        """Return one or several objects of messages that were delivered to the node."""
        state = self._states.state()
        self._check_run(request.run_id, node, f"Object_id: {request.object_id}")

        def pull(one: Any) -> Any:
            if not self._duties.delivered.has(node, one.object_id, state):
                one.object_id = ""  # which is no object: a node must not learn which others exist
            content = state.objects.get(one.object_id)
            if content:
                state.note_use(one.run_id, Use(sent=len(content)))
            found = {"object_found": content is not None, "object_available": bool(content)}
            return wire.METHODS["PullObject"].response(object_content=content, **found)

        def find(names: list[str], most: int) -> list[bytes]:
            may = takewhile(lambda name: self._duties.delivered.has(node, name, state), names)
            contents: list[bytes] = state.objects.first(list(may), most)
            state.note_use(request.run_id, Use(sent=sum(map(len, contents))))
            return contents

        try:
            return joined_objects.pull_each(request, pull, state, find)
        except ValueError as error:
            raise RequestRefused(str(error), "INVALID_ARGUMENT") from error

    def confirm_message_received(self, request: Any, node: int, context: Any) -> Any:
        """Forget a message that has arrived at the node."""
        self._replies.check_confirmation(request, node)
        try:
            self._check_run(request.run_id, node)
            self._states.state().objects.delete(request.message_object_id)
        finally:
            self._duties.unconfirmed.forget(node)  # not before: see `SharedState._take`
        return wire.METHODS["ConfirmMessageReceived"].response()

    def push_messages(self, request: Any, node: int, context: Any) -> Any:
        """Store the announcement of a reply, and name the objects that the node must push."""
        self._replies.check_reply(request, node)
        (reply,), (tree,) = request.messages_list, request.message_object_trees
        state, run_id = self._states.state(), reply.metadata.run_id
        getLogger("flwr").info("[Fleet.PushMessages] Push replies from node_id=%s", node)
        self._check_run(run_id, node)
        session_id, missing = state.announce_reply(reply, tree) or ("", [])
        answer = wire.METHODS["PushMessages"].response(
            results={reply.metadata.message_id: 0}, objects_to_push=missing, session_id=session_id
        )
        answer.reconnect.reconnect = 5  # as in Flower
        seconds = sum(request.clientapp_runtime_list[:1])
        state.note_use(run_id, Use(answer.ByteSize(), request.ByteSize(), seconds))
        self._replies.note_reply(request, answer, node)
        if session_id and (content := wire.carried(request)):
            try:
                found = dict(zip(protocol.names_in(tree), joined_objects.split(content), strict=True))
            except ValueError as error:
                raise RequestRefused(str(error), "INVALID_ARGUMENT") from error
            asked = {"node": request.node, "run_id": run_id, "session_id": session_id}
            pushes = list(joined_objects.joined((name, found[name]) for name in answer.objects_to_push))
            for name, part in pushes:
                push = wire.METHODS["PushObject"].request(object_id=name, object_content=part, **asked)
                if not self.push_object(push, node, context).stored:
                    return answer
            del answer.objects_to_push[:]
        return answer

    def push_object(self, request: Any, node: int, context: Any) -> Any:
        """Store one or several objects of a reply."""
        self._replies.check_object(request, node)
        state = self._states.state()
        self._check_run(request.run_id, node, f"Object_id: {request.object_id}")  # not in the transaction

        def push(one: Any) -> Any:
            what = one.session_id, one.object_id, one.object_content
            stored = state.store_object(one.run_id, *what)
            if stored:
                state.note_use(one.run_id, Use(received=len(one.object_content)))
            return wire.METHODS["PushObject"].response(stored=stored)

        def push_all(contents: dict[str, bytes]) -> bool:
            stored: bool = state.store_objects(request.run_id, request.session_id, contents)
            if stored:
                state.note_use(request.run_id, Use(received=sum(map(len, contents.values()))))
            return stored

        try:
            response = joined_objects.push_each(request, push, state, push_all)
        except ValueError as error:
            raise RequestRefused(str(error), "INVALID_ARGUMENT") from error
        if response.stored:
            self._replies.note_objects(request, node)
        return response

    def _check_run(self, run_id: int, node: int, details: str | None = None) -> None:
        """Refuse a request for a run that is not running, which is looked up once in `LOOK` seconds."""
        if reason := self._why_not_running(run_id):
            raise FleetError(errors.NOT_RUNNING, f"SuperNode {node}, exception: {reason}", details)

    def get_run(self, request: Any, node: int, context: Any) -> Any:
        """Describe a run, as far as its nodes need to know."""
        self._check_run(request.run_id, node)
        return wire.METHODS["GetRun"].response(run=self._run_of(request.run_id, node, errors.NO_RUN))

    def get_fab(self, request: Any, node: int, context: Any) -> Any:
        """Return a run's app."""
        self._check_run(request.run_id, node)
        run = self._run_of(request.run_id, node, errors.NO_APP)
        fab = self._fab(run.fab_hash) if run.fab_hash == request.hash_str else None
        if fab is None:
            raise FleetError(errors.NO_APP, f"Run {run.run_id} has no app with the hash {request.hash_str}")
        answer = wire.METHODS["GetFab"].response()
        answer.fab.hash_str, answer.fab.content = fab.hash_str, fab.content
        answer.fab.verifications.update(fab.verifications)
        return answer

    def _run_of(self, run_id: int, node: int, error: int) -> Any:
        run = self._states.state().run_for(node, run_id)
        if run is None:
            raise FleetError(error, f"SuperNode {node} is not in the federation of run {run_id}")
        return run


def _check_interval(seconds: float) -> None:
    """Refuse a heartbeat that announces the next one too soon or too late."""
    if not SHORTEST <= seconds <= LONGEST:
        text = f"Heartbeat interval {seconds} is out of bounds [{SHORTEST}, {LONGEST}]."
        raise FleetError(errors.BAD_INTERVAL, text)
