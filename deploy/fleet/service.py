"""The Fleet API: what happens to each request, from its headers to the answer.

A method of `FleetService` gets a request that the front door has admitted. It reads from top to bottom: the
request is checked, answered by Flower's handler, which knows nothing of the transport, and noted. A request
that is held is answered with a `Later`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import grpc

from deploy.fleet import wire
from deploy.fleet.duties import joined_objects
from deploy.fleet.duties.presence import FOREVER
from deploy.fleet.errors import RequestRefused
from deploy.flower.deferred_answers import after
from deploy.flower.patches.shared import remembered

if TYPE_CHECKING:
    from deploy.fleet.admission.reply_admission import ReplyAdmission
    from deploy.fleet.duties.duties import Duties
    from deploy.fleet.duties.enrolment import Enrolment
    from deploy.fleet.front_door import FrontDoor

HANDLERS = "flwr.superlink.servicer.fleet.fleet_handlers"


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
        self._flower = importlib.import_module(HANDLERS)
        self._statuses = RunStatuses(state_factory)
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
        """Refuse a registration, as Flower does if SuperNodes must authenticate."""
        return self._flower.register_node(request, self._states.state(), True)

    def unregister_node(self, request: Any, node: int, context: Any) -> Any:
        """Refuse an unregistration, as Flower does if SuperNodes must authenticate."""
        return self._flower.unregister_node(request, self._states.state(), True)

    def activate_node(self, request: Any, node: int, context: Any) -> Any:
        """Mark a node as online."""
        with self._door.waiting(context, node):
            self._duties.presence.wait_for_end(node)
        return self._flower.activate_node(request, self._states.state())

    def deactivate_node(self, request: Any, node: int, context: Any) -> Any:
        """Mark a node as offline."""
        return self._flower.deactivate_node(request, self._states.state())

    def send_node_heartbeat(self, request: Any, node: int, context: Any) -> Any:
        """Keep a node online. If it asks for it, the answer is held as long as the node is connected."""
        state, presence = self._states.state(), self._duties.presence
        if wire.HELD in map(tuple, context.invocation_metadata()):
            success = state.acknowledge_node_heartbeat(node, FOREVER)
            answer = wire.METHODS["SendNodeHeartbeat"].response(success=success)
            return presence.hold(answer, node, context) if success else answer
        answer = self._flower.send_node_heartbeat(request, state)
        if answer.success:
            presence.heard(node, request.heartbeat_interval)
        return answer

    def pull_messages(self, request: Any, node: int, context: Any) -> Any:
        """Deliver the node's last message again if the node has not confirmed it, else the next one."""
        again = self._duties.unconfirmed.again
        answer = again(node)
        if answer is None:
            # An earlier request, whose connection was lost, may get the message in this moment.
            answer = self._duties.held.hold(node, context, lambda: again(node) or self._next_message(request))

        def note(response: Any) -> Any:
            self._duties.delivered.note(node, response)
            self._replies.note_delivery(response, node)
            return response

        return after(answer, note)

    def _next_message(self, request: Any) -> Any:
        state = self._states.state()
        with state.session():  # so that a message does not count as delivered after an error
            response = self._flower.pull_messages(request, state, state.object_store)
        self._duties.unconfirmed.note(request.node.node_id, response)
        return response

    def pull_object(self, request: Any, node: int, context: Any) -> Any:
        """Return one or several objects of messages that were delivered to the node."""
        state = self._states.state()

        def pull(one: Any) -> Any:
            if not self._duties.delivered.has(node, one.object_id, state):
                one.object_id = ""  # which is no object: a node must not learn which others exist
            return self._flower.pull_object(one, self._statuses)

        try:
            return joined_objects.pull_each(request, pull, state)
        except ValueError as error:
            raise RequestRefused(str(error), "INVALID_ARGUMENT") from error

    def confirm_message_received(self, request: Any, node: int, context: Any) -> Any:
        """Forget a message that has arrived at the node."""
        self._replies.check_confirmation(request, node)
        self._duties.unconfirmed.forget(node)
        return self._flower.confirm_message_received(
            request, self._statuses, self._states.state().object_store
        )

    def push_messages(self, request: Any, node: int, context: Any) -> Any:
        """Store the announcement of a reply, and name the objects that the node must push."""
        self._replies.check_reply(request, node)
        response = self._flower.push_messages(request, self._statuses)
        self._replies.note_reply(request, response, node)
        return response

    def push_object(self, request: Any, node: int, context: Any) -> Any:
        """Store one or several objects of a reply."""
        self._replies.check_object(request, node)
        try:
            response = joined_objects.push_each(
                request, lambda one: self._flower.push_object(one, self._statuses), self._states.state()
            )
        except ValueError as error:
            raise RequestRefused(str(error), "INVALID_ARGUMENT") from error
        if response.stored:
            self._replies.note_objects(request, node)
        return response

    def get_run(self, request: Any, node: int, context: Any) -> Any:
        """Describe a run."""
        return self._flower.get_run(request, self._states.state())

    def get_fab(self, request: Any, node: int, context: Any) -> Any:
        """Return a run's app."""
        return self._flower.get_fab(request, self._states.state())


class RunStatuses:
    """The SuperLink's state, in which the status of a run is looked up at most once in `LOOK` seconds.

    Flower's handlers check with each request that the request's run is running, which takes milliseconds.
    """

    def __init__(self, state_factory: Any) -> None:
        self._states = state_factory
        self._status_of = remembered(lambda run: state_factory.state().get_run_status({run}))
        self.cleanup_run = remembered(lambda run: state_factory.state().cleanup_run(run))

    def get_run_status(self, runs: set[int]) -> Any:
        """Return the status of a run, by the run's id. `runs` holds one id."""
        (run,) = runs
        return self._status_of(run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._states.state(), name)
