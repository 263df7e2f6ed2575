"""The history of a run: a JSONL file with everything that is needed to plot the run.

Each line is an object with a ``type``:

======= ===============================================================================================
type    content
======= ===============================================================================================
run     the first line: ``version`` (of this format), every setting of the run, ``started`` (the time),
        ``flwr`` (the version of Flower)
round   one line per round, with ``test_loss`` and ``test_accuracy`` if the model was evaluated after the
        round (setting ``evaluate-every``). Round 0 is the model before training.
        The lines from round 1 on also hold:
        the selection: ``clients`` (indexes in draw order) and, aligned with ``clients``, ``client_ids``,
        ``counts``, ``probabilities``, ``importance``, ``weights``, ``responded``, ``update_norms``,
        ``reported_norms`` (the ‖w_m - w_t‖ that the clients report, divided by the learning rate, before
        the guard clips them), ``train_losses``, ``reply_seconds`` (from the TRAIN message until the server
        had the reply),
        ``training_seconds`` and ``batteries`` (%), both as the clients report them; ``reply_seconds``,
        ``training_seconds`` and ``batteries`` are empty if nothing is known;
        of buffered rounds (in other rounds empty, 0 and empty): ``staleness``: how many rounds ended while
        each client trained; ``num_stale``: the number of updates that were rejected as too stale;
        ``in_flight``: ids of the first 1000 clients that train when the round ends;
        ``failures`` and ``clipped``: lists of objects, each with a ``client`` and a ``reason``;
        ``quarantined``: ids of the available clients that were left out because they were in quarantine;
        ``silent``: ids of the clients in ``quarantined`` whose quarantine is for silence in earlier rounds;
        the others are in quarantine for offences;
        ``skipped``: why the round left the model unchanged; empty if it changed the model;
        ``train_loss``: the mean of ``train_losses``, weighted by ``weights``; ``num_available``: the
        number of selectable clients (available, and neither quarantined nor resting); ``seconds``: the time
        from the poll to the new model; ``phases``: the seconds of the parts of the round (``poll``,
        ``train``, ``aggregate``), empty if the engine sends no messages;
        ``absent``: indexes of the clients that were not selectable; null if they are more than 1000;
        ``eligible``: the conditions of the setting ``eligible`` in this round, which all available clients
        meet; ``num_ineligible``: how many clients are online and willing to train, but do not meet the
        conditions;
        ``messages_sent``, ``bytes_sent``, ``messages_received``, ``bytes_received`` since the line of the
        previous round, if the engine sends messages;
        ``group_metrics``: the ``loss`` and ``accuracy`` of each group, on the samples of the group's clients
        that evaluated the model
roster  all known clients, removed ones too, in the order of their indexes: ``client_ids``, ``client_sizes``,
        ``client_groups`` (names, null for none); written before the line of round 1, after clients were
        added, and after lines were lost
sizes   the clients whose sizes have changed since the last ``roster`` or ``sizes`` line: ``clients``
        (indexes) and, aligned with ``clients``, ``client_sizes``
lost    some lines could not be written and are missing here: ``lines`` (their number), ``first_round`` and
        ``last_round`` (of the missing ``round`` lines; null if no ``round`` line is missing)
resume  the run was interrupted and continues: ``round`` (the last round whose line was kept; later rounds
        are repeated), ``started``, ``num_rounds``
warning the training diverges or stands still, or no client reports what the selector learns from:
        ``round`` (after which this was noticed), ``reason``; at most one line of each kind per start or
        resume of the run
end     the last line of a run that has finished: ``rounds``, ``seconds``, ``model`` (path), ``best_round``,
        ``reason`` (why the run ended early, else empty). A resume removes this line
error   the last line of a run that failed or was stopped: ``reason``. A resume keeps this line. A ServerApp
        that was killed or interrupted writes neither ``end`` nor ``error``
======= ===============================================================================================

No module outside this folder writes or reads the file. Readers ignore unknown types and keys. NaN is written
as null. Texts may come from clients: `RunHistory.read` replaces control characters in all texts by escapes;
`Tail` and `read_lines` do not.
"""

from .parsing import FILE_NAME, TOLD_TO_END, VERSION, Line, VersionError, read_lines
from .reader import RunHistory, read_run
from .tail import Tail
from .writer import HistoryWriter

__all__ = [
    "FILE_NAME",
    "TOLD_TO_END",
    "VERSION",
    "HistoryWriter",
    "Line",
    "RunHistory",
    "Tail",
    "VersionError",
    "read_lines",
    "read_run",
]
