"""Lets ServerApps and executors repeat a request that the SuperLink fails to answer for a while."""

import importlib
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from deploy.flower.patches.shared import FAILING

_INVOKER = "flwr.supercore.retry.retry_invoker"
LAST = 4.0  # s for the last requests of a ServerApp that ends, which Flower kills after 5 s
PAUSE = 0.2  # s between two of its attempts


def retry_after_500() -> None:
    """Let this process repeat a request that the SuperLink answers with status 500.

    The SuperLink's database may be locked for a while. In stock Flower the first such answer ends the run.
    Here the run ends only if the request has failed for `FAILING` seconds.

    A ServerApp that ends reports it in one attempt in stock Flower. If the SuperLink is just being restarted,
    the run would seem to go on until its heartbeats are missed. Here it has as many attempts as fit into
    `LAST` seconds.
    """
    invoker = importlib.import_module(_INVOKER).RetryInvoker
    invoke = invoker.invoke
    unreachable = importlib.import_module("httpx").TransportError

    @wraps(invoke)
    def invoke_for_a_while(this: Any, target: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        began: float | None = None

        def attempt(*arguments: Any, **named: Any) -> Any:
            nonlocal began
            try:
                return target(*arguments, **named)
            except Exception as error:
                response: Any = getattr(error, "response", None)
                if getattr(response, "status_code", None) != 500:
                    began = None  # another failure, such as an absent SuperLink, is not limited here
                    raise
                now = time.monotonic()
                began = now if began is None else began
                if now - began > FAILING:
                    raise RuntimeError(f"The SuperLink has failed to answer for {FAILING:g} s") from error
                response.status_code = 503  # with which Flower repeats the request
                raise

        if this.max_tries != 1:
            return invoke(this, attempt, *arguments, **named)
        end = time.monotonic() + LAST
        while True:
            try:
                return invoke(this, attempt, *arguments, **named)
            except unreachable:
                if time.monotonic() >= end:
                    raise
                time.sleep(PAUSE)

    invoker.invoke = invoke_for_a_while
