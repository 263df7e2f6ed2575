"""The SuperLink's state in a database of its own."""

from flwr.superlink.federation import NoOpFederationManager

from deploy.fleet import factories
from deploy.fleet.duties.duties import Duties
from deploy.fleet.state import CohortLinkState
from deploy.fleet.storage import postgres


def made(database, duties=None):
    """Return this project's state in a new database, whose path or address is given."""
    if postgres.is_url(str(database)):
        from tests.support.postgres import shared  # not at the top: the driver is an extra

        return shared(database, duties)
    states = factories.make(str(database), NoOpFederationManager(), duties or Duties())
    state = states.state()
    assert isinstance(state, CohortLinkState)
    return state


def made_shared(kind):
    """Return a class of states or stores, with PostgreSQL as its database."""
    from deploy.fleet.storage.shared_state import Shared

    return type(f"Shared{kind.__name__}", (Shared, kind), {})
