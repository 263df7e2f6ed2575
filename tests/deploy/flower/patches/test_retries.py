"""Requests of ServerApps to a SuperLink that fails."""

import httpx
import pytest
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.retry.retry_invoker import RetryInvoker

from deploy.flower.patches import retries


def answer(code):
    return httpx.Response(code, request=httpx.Request("POST", "http://superlink"))


def test_a_request_that_always_fails_is_given_up(monkeypatch, clock):
    monkeypatch.setattr(RetryInvoker, "invoke", RetryInvoker.invoke)
    retries.retry_after_500()
    invoker = make_simple_http_retry_invoker()
    codes = []

    def wait(seconds):
        clock.now += 20.0

    invoker.wait_function = wait

    def ask():
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
