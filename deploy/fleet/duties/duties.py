"""What the Fleet service and the SuperLink's state share: which messages wait, and which nodes are there."""

from deploy.fleet.admission.delivered_objects import DeliveredObjects
from deploy.fleet.duties.deliveries import Unconfirmed
from deploy.fleet.duties.held_requests import HeldRequests
from deploy.fleet.duties.presence import Presence
from deploy.fleet.duties.spread import Spread
from deploy.fleet.duties.unread_replies import UnreadReplies
from deploy.fleet.storage.past_rounds import PastRounds


class Duties:
    """The duties of one SuperLink, made before Flower makes the SuperLink's state.

    `held`: holds requests for messages. The state tells it which messages have arrived. `past`: knows from
    the state which rounds are past. `unconfirmed`: delivers a message again. The state keeps such a message
    when its node restarts. `presence`: holds heartbeats and notices nodes that leave. The state asks it when
    a node returns. `delivered`: knows which objects each node may fetch. `spread`: knows the other front
    ends, and which nodes are to move to one. `unread`: keeps the replies that a ServerApp may not have
    received.
    """

    def __init__(self) -> None:
        self.held = HeldRequests()
        self.past = PastRounds()
        self.unconfirmed = Unconfirmed(self.past)
        self.presence = Presence(self.held.look_again)
        self.delivered = DeliveredObjects()
        self.spread = Spread()
        self.unread = UnreadReplies()

    def moved_away(self, node: int) -> None:
        """Forget what was sent to a node that has connected to another front end since."""
        self.unconfirmed.forget(node)
        self.delivered.forget(node)
        self.held.abandon(node)
        self.presence.moved_away(node)


duties = Duties()
"""Those of this process. Other processes than a SuperLink do not use them."""
