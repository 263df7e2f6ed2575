"""Lets ServerApps and executors repeat a request that the SuperLink fails to answer for a while."""

import importlib
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from deploy.flower.patches.shared import FAILING

_INVOKER = "flwr.supercore.retry.retry_invoker"


def retry_after_500() -> None:
    """Let this process repeat a request that the SuperLink answers with status 500.

    The SuperLink's database may be locked for a while. In stock Flower the first such answer ends the run.
    Here the run ends only if the request has failed for `FAILING` seconds.
    """
    invoker = importlib.import_module(_INVOKER).RetryInvoker
    invoke = invoker.invoke

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

        return invoke(this, attempt, *arguments, **named)

    invoker.invoke = invoke_for_a_while
