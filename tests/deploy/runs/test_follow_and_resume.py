"""Trials are submitted in order, restarted if their ServerApp dies, and do not end each other."""

import json
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from deploy.runs import follow_and_resume
from deploy.runs.follow_and_resume import train
from deploy.runs.trials import Trial
from server.history import VERSION, RunHistory, read_run
from server.settings import CHECKPOINTS
from strategies.checkpoint import CheckpointFolder

DELAY = 2  # polls from the submission of a trial to the first line of its history


class Run:
    """A run that starts its history some polls after it was submitted, and ends some polls later."""

    last_words = "the end of its log"
    stopped = False

    def __init__(self, path, number):
        self.path, self.number, self.polls = path, number, 0

    @property
    def over(self):
        self.polls += 1
        if self.polls == DELAY:
            self.write(
                "run", selector=self.path.parent.name, selector_settings="", started=f"{self.number:09d}"
            )
        if self.polls == 10 * DELAY:
            self.write("end")
        return self.polls >= 10 * DELAY

    def abort(self):
        raise AssertionError("it is over")

    def write(self, kind, **values):
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"type": kind, "version": VERSION, **values}) + "\n")


class Cluster:
    def __init__(self, folder):
        self.folder = self.logs = folder
        self.begun = []  # at each submission, the trials that had begun

    def check(self):
        return []

    def submit(self, run_config, name):
        self.begun.append(sorted(path.parent.name for path in self.folder.glob("*/history.jsonl")))
        return Run(self.folder / name / "history.jsonl", len(self.begun))


class Watcher:
    def __init__(self, odd=""):
        self.odd, self.events, self.waited = odd, list[str](), list[float]()

    def lines(self, trial, lines):
        if trial.name == self.odd and lines:
            raise TypeError("odd")

    def event(self, text):
        self.events.append(text)

    def waits(self, trial, seconds):
        self.waited.append(seconds)

    def refresh(self):
        pass


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(follow_and_resume, "WATCH_INTERVAL", 0)


def make(folder, *names):
    return [Trial(name, {}, RunHistory(folder / name / "history.jsonl")) for name in names]


def test_a_trial_starts_after_the_one_before_so_that_histories_are_read_in_order(tmp_path):
    cluster = Cluster(tmp_path)
    train(cluster, make(tmp_path, "c", "a", "b"), Watcher(), at_once=True)
    assert cluster.begun == [[], ["c"], ["a", "c"]]
    assert [trial.label for trial in read_run(tmp_path)] == ["c", "a", "b"]


def test_a_trial_that_cannot_be_shown_is_reported_and_all_are_trained(tmp_path):
    watcher = Watcher(odd="b")
    trained = make(tmp_path, "a", "b", "c")
    train(Cluster(tmp_path), trained, watcher, at_once=False)
    assert all(trial.history.finished for trial in trained)
    assert watcher.events == ["b: cannot be shown: TypeError('odd')"] * 2


def test_a_long_wait_for_news_is_told_again_and_again(tmp_path, monkeypatch):
    clock = iter(range(0, 10**6, 8))  # s: each look at the clock is 8 s after the last
    own = SimpleNamespace(monotonic=lambda: float(next(clock)), sleep=time.sleep)
    monkeypatch.setattr(follow_and_resume, "time", own)  # other threads have the real clock
    watcher = Watcher()
    train(Cluster(tmp_path), make(tmp_path, "a"), watcher, at_once=False)
    assert len(watcher.waited) >= 3
    assert all(later - earlier >= 24 for earlier, later in pairwise(watcher.waited))
    assert watcher.waited[0] >= follow_and_resume.PATIENCE


class Killed:
    """A run whose ServerApp wrote some rounds and was killed."""

    def __init__(self, path, lines):
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    over = True
    last_words = "the end of its log"
    stopped = False

    def abort(self):
        raise AssertionError("it is over")


class Fatal:
    """An engine on which each run is killed after the given number of rounds, or ends (None)."""

    def __init__(self, folder, *rounds, error=""):
        self.folder, self.rounds, self.error = folder, list(rounds), error
        self.logs = folder
        self.submitted = []
        self._reached = 0

    def check(self):
        return []

    def submit(self, run_config, name):
        resume = run_config.get("resume", False)
        self.submitted.append((name, resume))
        path = self.folder / "md" / "history.jsonl"
        settings = {"selector": "md", "selector_settings": "", "num_rounds": 9}
        first = {"type": "run", "version": VERSION, **settings}
        if resume:
            first = {"type": "resume", "round": self._reached, "num_rounds": 9}
        more = self.rounds.pop(0)
        if more is None:
            return Killed(path, [first, {"type": "end", "rounds": 9}])
        rounds = [{"type": "round", "round": self._reached + 1 + each} for each in range(more)]
        self._reached += more
        return Killed(path, [first, *rounds, *([{"type": "error", "reason": "no"}] if self.error else [])])


def test_a_trial_whose_serverapp_is_killed_resumes_from_its_checkpoint(tmp_path):
    engine, watcher = Fatal(tmp_path, 2, 0, 0, 1, 0, None), Watcher()
    (trial,) = make(tmp_path, "md")
    train(engine, [trial], watcher, at_once=True)
    assert trial.done
    assert engine.submitted == [("md", False), *((f"md-{number}", True) for number in range(2, 7))]
    assert watcher.events == ["md: its ServerApp died; it is started again"] * 5


CLAIM_AND_DIE = """
import os, signal, sys
from strategies.checkpoint import CheckpointFolder
CheckpointFolder(sys.argv[1]).claim()
os.kill(os.getpid(), signal.SIGKILL)
"""


class Unnoticed:
    """A run whose ServerApp was killed, which Flower does not notice."""

    last_words = ""
    stopped = False
    aborted = False
    polls = 0

    @property
    def over(self):
        self.polls += 1
        assert self.polls < 20, "its end is not noticed"
        return False

    def abort(self):
        self.aborted = True


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_a_serverapp_that_is_killed_before_its_first_line_of_history_is_noticed(tmp_path):
    runs = []

    class Engine(Fatal):
        def submit(self, run_config, name):
            if len(runs) == 1:  # the second ServerApp claims the checkpoints and writes nothing
                runs.append(Unnoticed())
            else:
                super().submit(run_config, name)
                runs.append(Killed(self.folder / "md" / "history.jsonl", []) if runs else Unnoticed())
            if isinstance(runs[-1], Unnoticed):
                folder = str(tmp_path / "md" / CHECKPOINTS)
                killed = subprocess.run([sys.executable, "-c", CLAIM_AND_DIE, folder], check=False)
                assert killed.returncode == -signal.SIGKILL
            return runs[-1]

    (trial,) = make(tmp_path, "md")
    train(Engine(tmp_path, 2, None), [trial], Watcher(), at_once=True)
    assert trial.done
    assert [type(run) for run in runs] == [Unnoticed, Unnoticed, Killed]
    assert runs[0].aborted
    assert runs[1].aborted


CLAIM_AND_WAIT = """
import sys
from strategies.checkpoint import CheckpointFolder
folder = CheckpointFolder(sys.argv[1])
folder.claim()
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_the_end_of_a_serverapp_that_worked_before_it_was_followed_is_noticed(tmp_path):
    command = [sys.executable, "-c", CLAIM_AND_WAIT, str(tmp_path / "md" / CHECKPOINTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as app:
        app.stdout.readline()

        class Followed(Unnoticed):
            @property
            def over(self):
                app.kill()
                app.wait()
                return super().over

        class Engine(Fatal):
            def submit(self, run_config, name):
                run = super().submit(run_config, name)
                return Followed() if len(self.submitted) == 1 else run

        (trial,) = make(tmp_path, "md")
        train(Engine(tmp_path, 2, None), [trial], Watcher(), at_once=True)
    assert trial.done


def test_a_trial_without_progress_is_given_up(tmp_path):
    engine, watcher = Fatal(tmp_path, 2, *[0] * 20), Watcher()
    (trial,) = make(tmp_path, "md")
    train(engine, [trial], watcher, at_once=True)
    assert len(engine.submitted) == 1 + follow_and_resume.TRIES
    assert watcher.events[-1].startswith("md failed: ended unexpectedly; the end of its log")


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    engine, watcher = Fatal(tmp_path, *[0] * 20), Watcher()
    train(engine, make(tmp_path, "md"), watcher, at_once=True)
    assert watcher.events[-1] == f"md failed: ended unexpectedly: no space is left for {tmp_path / 'md'}"


def test_a_failed_trial_gives_its_reason_and_is_not_restarted(tmp_path):
    engine, watcher = Fatal(tmp_path, 2, 2, error="no"), Watcher()
    train(engine, make(tmp_path, "md"), watcher, at_once=True)
    assert watcher.events == ["md failed: no"]
    train(engine, make(tmp_path, "md"), watcher, at_once=True)
    assert engine.submitted == [("md", False), ("md", True)]  # resumed only when the user asks for it


class Endless:
    """A run that the engine never calls over."""

    over = False
    last_words = "nothing"
    stopped = False

    def __init__(self):
        self.aborted = 0

    def abort(self):
        self.aborted += 1


class Deaf:
    """An engine that never notices the end of a run."""

    def __init__(self, folder, *ends):
        self.logs = folder
        self.ends = list(ends)
        self.runs = []

    def check(self):
        return []

    def submit(self, run_config, name):
        trial = self.logs / "md"
        (trial / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        end = self.ends.pop(0)
        with (trial / "history.jsonl").open("a") as file:
            for line in (
                {"type": "run", "version": VERSION, "num_rounds": 9},
                {"type": "round", "round": len(self.runs)},
            ):
                file.write(json.dumps(line) + "\n")
            if end == "finished":
                file.write(json.dumps({"type": "end", "rounds": 9}) + "\n")
        # What a killed process leaves in its lock file, and one that ended by itself does not.
        (trial / CHECKPOINTS / "lock").write_text("123" if end == "killed" else "")
        self.runs.append(Endless())
        return self.runs[-1]


def test_a_killed_serverapp_and_the_end_of_a_history_are_noticed_without_the_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(follow_and_resume, "END_TIMEOUT", 0.05)
    engine, watcher = Deaf(tmp_path, "killed", "finished"), Watcher()
    (trial,) = make(tmp_path, "md")
    train(engine, [trial], watcher, at_once=True)
    assert trial.problem is None
    assert [run.aborted for run in engine.runs] == [1, 0]
    assert watcher.events == ["md: its ServerApp died; it is started again"]


def test_a_run_is_followed_until_its_log_has_ended(tmp_path, monkeypatch):
    """Lines that came 10 s after the end of the history, on a busy machine, were not printed."""
    now = 0.0

    def sleep(_):
        nonlocal now
        now += 1.0

    class Late(Endless):
        @property
        def over(self):
            return now >= 30

    engine, (trial,) = Deaf(tmp_path, "finished"), make(tmp_path, "md")
    monkeypatch.setattr(follow_and_resume, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(sys.modules[__name__], "Endless", Late)
    train(engine, [trial], Watcher(), at_once=True)
    assert trial.history.finished
    assert now >= 30


def test_a_run_is_not_over_while_its_serverapp_works(tmp_path, monkeypatch):
    (trial,) = make(tmp_path, "md")
    following = follow_and_resume._Follower(Fatal(tmp_path, 2), trial)
    assert following.over
    monkeypatch.setattr(CheckpointFolder, "is_claimed", lambda self: True)
    assert not following.over


def test_a_run_that_was_stopped_is_not_started_again(tmp_path, monkeypatch):
    """`cohort server stop` ends the ServerApp, which then looks as if it had died."""
    monkeypatch.setattr(Killed, "stopped", True)
    engine = Fatal(tmp_path, 2, None)
    (trial,) = make(tmp_path, "md")
    watcher = Watcher()
    train(engine, [trial], watcher, at_once=False)
    assert len(engine.submitted) == 1
    assert watcher.events == ["md was stopped"]
