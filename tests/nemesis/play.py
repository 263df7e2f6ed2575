"""Carries out faults on a running federation."""

import signal
import threading
import time
from collections.abc import Callable

from ..support.proxy import Trouble
from .faults import CLIENTAPP, DATABASE, LINK, MACHINE, NETWORK, POSTGRES

LOOK = 0.01  # s
LOOK_FOR = 8.0  # s in which the process of a fault must show up; a ClientApp exists only while it trains
SIGNALS = {"kill": signal.SIGKILL, "restart": signal.SIGTERM, "pause": signal.SIGSTOP}
Heal = Callable[[], None]


def play(episode, federation):
    """Carry out the faults of an episode; return, for each, when it began and was healed.

    Returns
    -------
    list of dict
        "hit": whether there was something to be hit; "began", "healed": time.time(), s.
    """
    outcomes = [{} for _ in episode.faults]
    begin = time.monotonic()

    def carry_out(fault, outcome):
        time.sleep(max(0.0, begin + fault.start - time.monotonic()))
        try:
            heal = _begin(fault, federation)
        except Exception as error:  # the nemesis must not die of its own faults: the outcome shows them
            outcome.update(hit=False, error=repr(error))
            return
        outcome.update(hit=heal is not None, began=time.time())
        if heal is not None:
            time.sleep(fault.seconds)
            heal()
        outcome["healed"] = time.time()

    threads = [
        threading.Thread(target=carry_out, args=pair) for pair in zip(episode.faults, outcomes, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _begin(fault, federation):
    """Begin a fault; return what heals it, None if there was nothing to be hit."""
    if fault.part in (NETWORK, LINK):
        proxies = federation.connections(fault)
        for proxy in proxies:
            proxy.suffer(Trouble(fault.trouble), fault.delay)
        return lambda: [proxy.heal(reset=fault.reset) for proxy in proxies] and None
    if fault.part == DATABASE:
        return federation.lock()
    if fault.part in (MACHINE, POSTGRES):
        return federation.fail(fault)
    end = time.monotonic() + LOOK_FOR
    while time.monotonic() < end:
        target = federation.target(fault.part, fault.client, fault.front)
        if target is not None and target.signal(SIGNALS[fault.fault]):
            return lambda: fault.fault == "pause" and target.signal(signal.SIGCONT) and None
        time.sleep(LOOK if fault.part == CLIENTAPP else 10 * LOOK)
    return None
