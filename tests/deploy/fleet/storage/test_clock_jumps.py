"""A jump of the clock of the SuperLink's machine ends no run."""

import importlib
from datetime import timedelta
from types import SimpleNamespace

import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.server.utils import validator
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.task_identity import TaskIdentity

from deploy.fleet import factories, protocol
from deploy.fleet.storage import clock_jumps
from deploy.fleet.storage.clock_jumps import GRACE
from tests.support.states import made

HOUR = 3600.0


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that only the test moves: `time` passes, and `jump` is how far the clock has jumped."""

    class Clock:
        time, jump = 1000.0, 0.0

        def monotonic(self):
            return self.time

        def now(self):
            return began + timedelta(seconds=self.time + self.jump)

    clock, began = Clock(), validator.now()
    # Not in the module `time` itself, by which other threads wait.
    fake = SimpleNamespace(monotonic=clock.monotonic, time=lambda: clock.now().timestamp())
    for module in (clock_jumps, importlib.import_module(factories._STATE)):
        monkeypatch.setattr(module, "time", fake)
    for module in (protocol, importlib.import_module(factories._CORE_STATE)):
        monkeypatch.setattr(module, "now", clock.now)
    return clock


@pytest.fixture
def state(database, clock, monkeypatch):
    state = made(database)
    monkeypatch.setattr(validator, "now", state.clock_jumps.now_for_messages)
    monkeypatch.setattr("deploy.fleet.state.LOOK", 0.0)  # tokens are cleaned up whenever the test asks
    return state


@pytest.fixture
def is_running(state):
    """Start a run, and return a function that tells whether its ServerApp counts as alive."""
    arguments = ("app", "1", "hash", {}, NOOP_FEDERATION_ID, None, "flwr_aid", TaskType.SERVER_APP)
    (run,) = state.get_run_info(run_ids=[state.create_run(*arguments)])
    token = state.claim_task(run.primary_task_id)
    assert token is not None
    assert state.activate_task(run.primary_task_id)
    return lambda: state.get_task_by_token(token) is not None


def test_a_serverapp_outlives_jumps_of_the_clock(state, clock, is_running, caplog):
    for jump in (HOUR, 3 * HOUR, 0.0, -HOUR, HOUR):
        clock.jump = jump
        assert is_running()
        state._cleanup_expired_task_tokens()
        assert is_running()
    assert [line for line in caplog.messages if "jumped" in line] == [
        f"The clock has jumped by {hours * HOUR:.0f} s" for hours in (1, 2, 2)
    ]


def test_a_serverapp_without_heartbeats_dies_after_a_jump_too(clock, is_running):
    clock.jump = HOUR
    assert is_running()
    clock.time += HOUR / 2
    assert not is_running()


def test_a_message_from_before_a_jump_can_be_pushed_for_a_while(clock, is_running, monkeypatch):
    for name, value in {"task": 1, "run": 1, "node": SUPERLINK_NODE_ID}.items():
        monkeypatch.setattr(TaskIdentity, f"_{name}_id", value)
    message = Message(RecordDict(), 7, "train", ttl=60)
    message.metadata.__dict__["_created_at"] = clock.now().timestamp()

    def errors():
        is_running()  # asked in every request of a ServerApp
        return [each for each in validator.validate_message(message, is_reply_message=False) if "TTL" in each]

    assert errors() == []
    clock.jump = HOUR
    assert errors() == []
    clock.time += GRACE + 1
    assert errors() == ["Message TTL has expired"]
