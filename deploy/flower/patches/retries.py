"""Lets ServerApps and executors repeat a request that the SuperLink fails to answer for a while."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from deploy.flower.patches.shared import FAILING, replace

_RETRY = "flwr.supercore.retry.http_retry"
_INVOKER = "flwr.supercore.retry.retry_invoker"


def retry_after_500() -> None:
    """Let this process repeat a request that the SuperLink answers with status 500.

    The SuperLink's database may be locked for a while. In stock Flower the first such answer ends the run.
    Here the run ends only if the request has failed for `FAILING` seconds.
    """
    replace(_RETRY, _RETRYABLE_STATUS_CODES=frozenset({500, 503, 504}))
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
                if getattr(getattr(error, "response", None), "status_code", None) != 500:
                    began = None  # another failure, such as an absent SuperLink, is not limited here
                    raise
                now = time.monotonic()
                began = now if began is None else began
                if now - began > FAILING:
                    raise RuntimeError(f"The SuperLink has failed to answer for {FAILING:g} s") from error
                raise

        return invoke(this, attempt, *arguments, **named)

    invoker.invoke = invoke_for_a_while
