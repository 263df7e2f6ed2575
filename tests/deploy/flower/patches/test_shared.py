"""Requests of ServerApps to a SuperLink that fails."""

import io
import logging
from typing import Any

import httpx
import pytest
from flwr.supercore.retry import http_retry, make_simple_http_retry_invoker
from flwr.supercore.retry.retry_invoker import RetryInvoker

from deploy.flower.patches import shared


def answer(code: int) -> httpx.Response:
    return httpx.Response(code, request=httpx.Request("POST", "http://superlink"))


def test_a_request_that_always_fails_is_given_up(monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    monkeypatch.setattr(http_retry, "_RETRYABLE_STATUS_CODES", http_retry._RETRYABLE_STATUS_CODES)
    monkeypatch.setattr(RetryInvoker, "invoke", RetryInvoker.invoke)
    shared.retry_after_500()
    invoker = make_simple_http_retry_invoker()
    codes: list[int] = []

    def wait(seconds: float) -> None:
        clock.now += 20.0

    invoker.wait_function = wait

    def ask() -> str:
        answer(codes.pop(0)).raise_for_status()
        return "an answer"

    codes[:] = [500, 500, 500, 200]  # a locked database
    assert invoker.invoke(ask) == "an answer"
    codes[:] = [500, 500, 500, *[503] * 10, 500, 200]  # then it was away, for minutes
    assert invoker.invoke(ask) == "an answer"
    codes[:] = [500] * 10
    with pytest.raises(RuntimeError, match="failed to answer for 60 s"):
        invoker.invoke(ask)
    assert len(codes) == 5


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_lines_that_no_handler_writes_are_skipped(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    logger, handler = logging.Logger("flwr", logging.DEBUG), logging.StreamHandler(io.StringIO())
    handler.setLevel(level)
    logger.addHandler(handler)
    monkeypatch.setattr(shared, "getLogger", lambda name: logger)
    shared.skip_unseen_lines()
    assert logger.isEnabledFor(logging.DEBUG) == (level == logging.DEBUG)
    logger.info("a line")
    logger.debug("a detail")
    assert handler.stream.getvalue() == ("a line\na detail\n" if level == logging.DEBUG else "a line\n")
