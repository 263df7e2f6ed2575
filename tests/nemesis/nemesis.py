"""A run under a nemesis: faults from a schedule, rounds that must come back, and a verdict at the end."""

import itertools
import json
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from safetensors.numpy import load_file

from deploy.runs.trials import Trial
from server.history import FILE_NAME, RunHistory

from .checker import Verdict, check
from .faults import SERVERAPP, episode
from .front_ends import ENGINES
from .play import play
from .watch import Watch

FOREVER = 1_000_000  # rounds; the nemesis lowers the number when its time is over
LAST_ROUNDS = 5
STOPPED = "told to end"  # of a ServerApp that got SIGTERM: its operator resumes the run
START_LIMIT, END_LIMIT = 300.0, 480.0  # s
DEAD = 240.0  # s without a round after an episode: the run is given up
SETTLE = 30.0  # s that the nemesis waits for all clients before the next episode
LOOK = 0.1  # s
SPIN = 0.01  # s of computing in each measurement of the machine's slowness
SLOWEST = 4.0  # the largest factor by which a loaded machine stretches the bound


@dataclass
class Report:
    """What a run under the nemesis measured."""

    seed: int
    engine: str
    folder: str
    bound: float
    violations: list[str] = field(default_factory=list)
    episodes: list[dict[str, Any]] = field(default_factory=list)
    """Each with "live" and "whole": seconds from the last healing until a round was completed, and until one
    was completed for which all clients were available (None: not before the next episode). "slowness" is that
    of the machine until the first of these rounds, see `Slowness`; "gap" the longest time without a completed
    round, from the first fault to the round after the healing, s."""
    verdict: Verdict | None = None
    resumes: int = 0
    minutes: float = 0.0


class Nemesis:
    """One run of a federation under faults.

    Parameters
    ----------
    folder : Path
        Must not exist; keeps the history, the schedule, the outcome and all logs.
    bound : float, optional
        Seconds after the last healing of an episode within which a round must be completed, on a machine of
        its own; times the measured `Slowness`. By default, that of the federation.
    say : Callable[[str], None]
        Receives a line for the operator.
    plan : sequence of Episode, optional
        The schedule. By default, that of the seed, until the time is over.
    """

    def __init__(self, folder, *, seed, minutes, engine, bound, clients, per_round, deadline, say, plan=None):
        folder.mkdir(parents=True)
        self.report = Report(seed, engine, str(folder), bound or ENGINES[engine].bound)
        self._folder, self._minutes, self._say = folder, minutes, say
        self._clients, self._per_round = clients, per_round
        self._federation = ENGINES[engine](folder, clients)
        config = {
            "selector": "md",
            "num-clients": clients,
            "num-rounds": FOREVER,
            "clients-per-round": per_round,
            "partition": "balanced",
            "learning-rate": 1.0,  # the recorded norms are divided by it
            "round-deadline": deadline,
            "seed": seed,
            "output-dir": str(self._federation.run),
        }
        self._trial = Trial("run", config, RunHistory(self._federation.run / FILE_NAME))
        self._plan = plan
        self._problems, self._stops = [], 0
        self._slowness = Slowness()

    def run(self):
        """Play the schedule until the time is over, let the run end, and check it."""
        began = time.monotonic()
        watch = Watch(self._federation.run)
        try:
            with self._federation as engine:
                trainer = threading.Thread(target=self._train, args=(engine,), daemon=True)
                trainer.start()
                if self._wait(lambda: len(watch.rounds) > 3, START_LIMIT):
                    self._attack(watch, began + 60 * self._minutes)
                    self._finish(trainer)
                else:
                    self.report.violations.append(f"no round within {START_LIMIT:g} s")
        finally:
            watch.close()
            self.report.minutes = round((time.monotonic() - began) / 60, 2)
        self._judge(watch)
        (self._folder / "outcome.json").write_text(json.dumps(asdict(self.report), indent=1))
        return self.report

    def _train(self, engine):
        """Follow the run as `cohort up` does; if it ends too early, resume it as its operator would."""
        for attempt in itertools.count(2):
            try:
                self._federation.train(engine, self._trial, self._say)
            except Exception as error:
                self._problems.append(f"the engine ended: {error!r}")
                return
            if self._trial.done:
                return
            if self._trial.run_config["num-rounds"] == FOREVER:
                if self._trial.problem != STOPPED:
                    self._problems.append(f"the run ended by itself: {self._trial.problem}")
                self._stops += self._trial.problem == STOPPED
            self._say(f"resumed by hand: {self._trial.problem}")
            if len(self._problems) > 5:
                return
            self._trial = replace(self._trial, name=f"run-by-hand-{attempt}")  # a cluster knows the other

    def _attack(self, watch, end):
        for now in self._plan or self._drawn():
            if time.monotonic() > end:
                return
            with (self._folder / "schedule.jsonl").open("a") as file:
                file.write(json.dumps(now.line()) + "\n")
            self._say(describe(now))
            time.sleep(now.quiet)
            before, began = len(watch.rounds), time.time()
            faults = play(now, self._federation)
            healed = time.time()
            self._slowness = Slowness()
            live = self._wait_for_round(watch, healed, DEAD, 1)
            slowness = self._slowness.factor
            whole = None if live is None else self._wait_for_round(watch, healed, SETTLE, self._clients)
            outcome = {
                **now.line(),
                "outcome": faults,
                "live": live,
                "whole": whole,
                "slowness": slowness,
                "rounds": len(watch.rounds) - before,
                "gap": longest_gap([line["at"] for line in watch.rounds_since(0)], began, healed),
            }
            self.report.episodes.append(outcome)
            with (self._folder / "episodes.jsonl").open("a") as file:
                file.write(json.dumps(outcome) + "\n")
            hits = "".join("x" if each["hit"] else "-" for each in faults)
            self._say(f"  [{hits}] a round after {_seconds(live)}, all clients after {_seconds(whole)}")
            if live is None or live > self.report.bound * slowness:
                took = f"{_seconds(live)} until a round was completed"
                limit = f"{self.report.bound:g} s on a machine that is {slowness:g} times slower than alone"
                self.report.violations.append(f"episode {now.number}: {took}, not {limit}")
            if live is None:
                return

    def _drawn(self):
        """Yield the episodes of the seed."""
        federation = self._federation
        for number in itertools.count():
            yield episode(self.report.seed, number, self._clients, federation.faults, federation.fronts)

    def _wait_for_round(self, watch, since, limit, available):
        """Return the seconds until a round with so many available clients was completed."""

        def found():
            return [
                line for line in watch.rounds_since(since) if (line.get("num_available") or 0) >= available
            ]

        self._wait(lambda: bool(found()), limit)
        first = found()
        return round(first[0]["at"] - since, 2) if first else None

    def _finish(self, trainer):
        """Let the run end after a few more rounds."""
        reached = max(line["round"] for line in self._rounds())
        self._federation.shorten(self._trial, reached + LAST_ROUNDS)
        trainer.join(END_LIMIT)
        if trainer.is_alive():
            self.report.violations.append(f"the run did not end within {END_LIMIT:g} s")

    def _rounds(self):
        history = RunHistory(self._federation.run / FILE_NAME)
        history.read()
        return history.rounds

    def _judge(self, watch):
        report, run = self.report, self._federation.run
        report.resumes = watch.resumes
        report.violations += self._problems + watch.violations
        told = sum(
            fault["part"] == SERVERAPP and fault["fault"] == "restart" and outcome["hit"]
            for each in report.episodes
            for fault, outcome in zip(each["faults"], each["outcome"], strict=True)
        )
        if self._stops > told:
            report.violations.append(f"the run was told to end {told} times, and ended {self._stops} times")
        if not (run / FILE_NAME).exists():
            return
        last = run / "model.safetensors"
        report.verdict = check(
            run / FILE_NAME,
            self._federation.trainings,
            watch.models,
            clients_per_round=self._per_round,
            last=load_file(last) if last.exists() else None,
        )
        report.violations += report.verdict.violations

    def _wait(self, condition, limit):
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(LOOK)
            self._slowness.measure()
        return True


class Slowness:
    """How many times longer computing takes than the processor time that it needs: 1 on an idle machine."""

    def __init__(self):
        self._wall = self._processor = 0.0

    @property
    def factor(self):
        """The mean over all measurements so far, at most `SLOWEST`: minutes would be no bound."""
        slowness = self._wall / self._processor if self._processor else 1.0
        return round(min(max(1.0, slowness), SLOWEST), 2)

    def measure(self):
        """Compute for some milliseconds."""
        wall, processor = time.perf_counter(), time.thread_time()
        while time.thread_time() - processor < SPIN:
            pass
        self._wall += time.perf_counter() - wall
        self._processor += time.thread_time() - processor


def longest_gap(completed, began, healed):
    """Return the longest time between two rounds, of those that ended between two times or next to them.

    Parameters
    ----------
    completed : list of float
        When each round was completed, in this order; s.
    """
    gaps = [after - before for before, after in pairwise(completed) if after > began and before < healed]
    return round(max(gaps, default=0.0), 2)


def describe(now):
    """Return an episode as one line."""
    faults = []
    for fault in now.faults:
        who = "" if fault.client is None else f" {fault.client}"
        at = "" if fault.front is None else f" at front end {fault.front}"
        how = f" {fault.trouble}" if fault.trouble else f" by {fault.jump:+g} s" if fault.jump else ""
        long = f" for {fault.seconds:g} s" if fault.seconds else ""
        after = " then reset" if fault.reset else ""
        faults.append(f"{fault.fault} {fault.part}{who}{at}{how}{long}{after}")
    return f"episode {now.number}: {'; '.join(faults)}"


def _seconds(value):
    return "never" if value is None else f"{value:.1f} s"
