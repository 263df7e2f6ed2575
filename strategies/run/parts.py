"""The parts of a run, made from its settings and connected once."""

from dataclasses import dataclass
from logging import WARNING

from flwr.common import log
from flwr.serverapp.strategy import FedAvg

from ..clients.eligible_clients import EligibleClients
from ..clients.overrides import Groups, Removals
from ..flower.attendance import Attendance
from ..flower.polling import Poll
from ..options import GROUPS
from ..rounds.control_variates import create_variates
from ..server_steps.step import ServerStep
from .buffered_rounds import BufferedRounds
from .evaluation import ClientEvaluation
from .round_end import RoundEnding
from .round_log import RoundLog
from .round_start import RoundOpening
from .saved_run import Part, SavedRun
from .selector_clients import SelectorClients, needs_status
from .settings import RunSettings
from .training import ClientTraining


@dataclass(frozen=True)
class RunParts:
    """The parts of one run."""

    attendance: Attendance
    clients: SelectorClients
    step: ServerStep
    log: RoundLog
    training: ClientTraining
    opening: RoundOpening
    ending: RoundEnding
    buffered: BufferedRounds
    evaluation: ClientEvaluation
    saved: SavedRun

    @classmethod
    def of(cls, settings: RunSettings, reporters: Part) -> "RunParts":
        k = settings.clients_per_round
        step = ServerStep(
            settings.server_strategy or _fedavg(),
            settings.selector,
            settings.selector_settings,
            clients_per_round=min(k, settings.budgets.smallest),
            variates=settings.variates,
        )
        groups = Groups()
        if GROUPS in settings.kind.per_client or settings.overrides.group_shares:
            groups = Groups.of(settings.overrides, settings.of_selector)
        eligible = EligibleClients(settings.eligible, settings.overrides, groups)
        eligible.begin(1)  # refuse wrong conditions now
        eligible.check(settings.faults.quorum)
        attendance = Attendance(
            min_available_clients=settings.min_available_clients or k,
            clients_per_round=k,
            quorum=settings.faults.quorum,
            deadlines=settings.deadlines,
            polling=settings.polling,
            removals=Removals(settings.overrides.removed, report=lambda line: log(WARNING, line)),
            groups=groups,
            needs_status=needs_status(settings, eligible),
            declared=settings.overrides.identities,
            eligible=eligible,
        )
        roster = attendance.roster
        variates = create_variates(settings.variates) if settings.variates else None
        clients = SelectorClients(settings, roster, groups, variates, step.is_private)
        round_log = RoundLog(settings, roster)
        training = ClientTraining(settings, step, roster, variates)
        buffered = BufferedRounds(training, roster, step.base.weighted_by_key)
        poll = Poll(
            roster,
            settings.polling,
            settings.deadlines.poll,
            settings.seed,
            step.base.arrayrecord_key,
            step.base.configrecord_key,
        )
        saved: dict[str, Part] = {
            "logic": clients,
            "step": step,
            "reporters": reporters,
            "in_flight": buffered,
        }
        return cls(
            attendance,
            clients,
            step,
            round_log,
            training,
            RoundOpening(attendance, clients, poll, settings.rates, training, round_log),
            RoundEnding(attendance, clients, step, round_log),
            buffered,
            ClientEvaluation(step, roster, groups, settings.seed, settings.deadlines.round),
            SavedRun(settings.checkpoints, settings.fixed(step), saved, attendance),
        )


def _fedavg() -> FedAvg:
    """Return FedAvg without evaluation on clients; ``FedAvg(fraction_evaluate=0.0)`` would log a warning."""
    strategy = FedAvg()
    strategy.fraction_evaluate = 0.0
    return strategy
