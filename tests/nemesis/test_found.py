"""Faults that the nemesis found, each of which stopped all rounds for a deadline or longer."""

import signal
import threading
import time

import pytest

from deploy.runs.follow_and_resume import Watcher, train
from deploy.runs.trials import Trial
from server.history import FILE_NAME, RunHistory

from ..support.proxy import Trouble
from .faults import CLIENTAPP, SERVERAPP, SUPERLINK
from .federations import ClusterFederation
from .watch import Watch

pytestmark = [pytest.mark.network, pytest.mark.slow]

DEADLINE = 60.0  # s of a round
SOON = 20.0  # s; a reconnection takes a few


class Attacked:
    """A federation of two clients that both train in every round."""

    def __init__(self, folder):
        self.federation = ClusterFederation(folder, 2)
        config = {
            "selector": "md",
            "num-clients": 2,
            "clients-per-round": 2,
            "num-rounds": 10_000,
            "round-deadline": DEADLINE,
            "output-dir": str(self.federation.run),
        }
        self.trial = Trial("run", config, RunHistory(self.federation.run / FILE_NAME))
        self.watch = Watch(self.federation.run)

    def wait(self, condition, limit, what):
        end = time.monotonic() + limit
        while not (found := condition()):
            assert time.monotonic() < end, f"{what}: not within {limit:g} s"
            time.sleep(0.005)
        return found

    def wait_for_round(self, limit):
        since = time.time()
        self.wait(lambda: self.watch.rounds_since(since), limit, "a round")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    attacked = Attacked(tmp_path_factory.mktemp("attacked"))
    with attacked.federation as engine:
        arguments = (engine, [attacked.trial], Watcher(print))
        threading.Thread(target=train, args=arguments, kwargs={"at_once": False}, daemon=True).start()
        attacked.wait_for_round(120)
        yield attacked
        attacked.watch.close()


def test_a_reply_whose_acknowledgement_is_lost_is_sent_again(attacked):
    proxy = attacked.federation.proxies[0]
    attacked.wait(lambda: attacked.federation.target(CLIENTAPP, 0), 30, "a training")
    proxy.suffer(Trouble.HALF_OPEN)  # the reply arrives at the SuperLink, and the SuperNode is not told
    time.sleep(2)
    proxy.heal(reset=True)
    attacked.wait_for_round(SOON)


def test_a_message_that_is_lost_on_its_way_is_delivered_again(attacked):
    proxy = attacked.federation.proxies[0]
    attacked.wait_for_round(DEADLINE)
    serverapp = attacked.wait(lambda: attacked.federation.target(SERVERAPP), 10, "a ServerApp")
    serverapp.signal(signal.SIGSTOP)
    time.sleep(2)  # both SuperNodes have replied and asked for the next message
    proxy.suffer(Trouble.HALF_OPEN)
    serverapp.signal(signal.SIGCONT)
    time.sleep(3)  # the message has left the SuperLink
    proxy.heal(reset=True)
    attacked.wait_for_round(SOON)


def test_a_superlink_that_is_asked_to_end_does_so_while_a_log_is_followed(attacked):
    superlink = attacked.wait(lambda: attacked.federation.target(SUPERLINK), 10, "a SuperLink")
    assert superlink.signal(signal.SIGTERM)  # the last test: `cohort up` ends with its SuperLink
    attacked.wait(lambda: not superlink.exists, SOON, "the end of the SuperLink")
