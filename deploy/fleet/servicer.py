"""Answers the requests of the Fleet API with Flower's own handlers, which know nothing of the transport."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HANDLERS = "flwr.superlink.servicer.fleet.fleet_handlers"
_FUNCTIONS = {
    "RegisterNode": "register_node",
    "ActivateNode": "activate_node",
    "DeactivateNode": "deactivate_node",
    "UnregisterNode": "unregister_node",
    "SendNodeHeartbeat": "send_node_heartbeat",
    "PullMessages": "pull_messages",
    "PushMessages": "push_messages",
    "GetRun": "get_run",
    "GetFab": "get_fab",
    "PushObject": "push_object",
    "PullObject": "pull_object",
    "ConfirmMessageReceived": "confirm_message_received",
}
USED = tuple(f"{HANDLERS}:{name}" for name in _FUNCTIONS.values())


class FleetServicer:
    """The methods of the Fleet API, each with the parameters ``request`` and ``context``.

    Parameters
    ----------
    state_factory : flwr.server.superlink.linkstate.LinkStateFactory
        Returns the SuperLink's state.
    """

    def __init__(self, state_factory: Any) -> None:
        self.state_factory = state_factory


def _method(function: str) -> Callable[[FleetServicer, Any, Any], Any]:
    def answer(this: FleetServicer, request: Any, _: Any) -> Any:
        handler = getattr(importlib.import_module(HANDLERS), function)
        state = this.state_factory.state()
        known = {"request": request, "state": state, "enable_supernode_auth": True}
        wanted = inspect.signature(handler).parameters
        if "store" in wanted:
            known["store"] = state.object_store
        return handler(**{name: known[name] for name in wanted})

    return answer


for _name, _function in _FUNCTIONS.items():
    setattr(FleetServicer, _name, _method(_function))
