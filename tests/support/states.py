"""The SuperLink's state in a database of its own."""

from flwr.superlink.federation import NoOpFederationManager

from deploy.fleet import factories
from deploy.fleet.duties.duties import Duties
from deploy.fleet.state import CohortLinkState


def made(database, duties=None):
    """Return this project's state in a new database."""
    states = factories.make(str(database), NoOpFederationManager(), duties or Duties())
    state = states.state()
    assert isinstance(state, CohortLinkState)
    return state
