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


@pytest.mark.parametrize("refused", [5, 100])
def test_the_report_of_a_serverapp_that_ends_outlives_a_short_restart(refused, monkeypatch, clock):
    monkeypatch.setattr(RetryInvoker, "invoke", RetryInvoker.invoke)
    retries.retry_after_500()
    invoker = make_simple_http_retry_invoker()
    invoker.max_tries = 1  # as Flower sets it then
    monkeypatch.setattr(retries.time, "sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))
    attempts = []

    def report():
        attempts.append(clock.now)
        if len(attempts) <= refused:
            raise httpx.ConnectError("refused")
        return "an answer"

    if refused == 5:
        assert invoker.invoke(report) == "an answer"
        return
    with pytest.raises(httpx.ConnectError):
        invoker.invoke(report)
    assert 4.0 <= attempts[-1] - attempts[0] < 5.0
