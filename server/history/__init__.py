"""The history of a run: a JSONL file with everything that is needed to plot the run.

No module outside this folder writes or reads the file. Each line is an object with a ``type``:

======= ===============================================================================================
type    content
======= ===============================================================================================
run     the first line: ``version`` (of this format), every setting of the run, ``started`` (the time),
        ``flwr`` (the version of Flower). ``guard`` is the name of the guard's level, or false. The true
        of histories of before the guard had levels is read as "strict", whose rules were those of the guard
round   a round, see below
roster  all known clients, removed ones too, in the order of their indexes: ``client_ids``, ``client_sizes``
        (the samples that the client claims to hold; null for no claim), ``used_sizes`` (the size from which
        the weights of the next round's line were computed; null for ``mean_size``), ``mean_size`` (the mean
        of the known used sizes), ``client_groups`` (names, null for none). The line precedes the line of a
        round >= 1 if this is the first such round since a start or resume, if clients were added, or if lines
        were lost. Histories of before the guard had levels lack ``used_sizes`` and ``mean_size``
sizes   the clients whose sizes have changed since the last ``roster`` or ``sizes`` line: ``clients``
        (indexes) and, aligned with ``clients``, ``client_sizes`` and ``used_sizes``; and ``mean_size``
lost    some lines could not be written and are missing here: ``lines`` (their number), ``first_round`` and
        ``last_round`` (of the missing ``round`` lines; null if no ``round`` line is missing)
resume  the run was resumed: ``round`` (the last round whose line was kept; later rounds are
        repeated), ``started``, ``num_rounds``
warning the training diverges or stands still, no client reports what the selector learns from, or a client's
        claimed data size is clipped or ignored: ``round`` (the round after which this was noticed),
        ``reason``; at most one line about the training, one about the reports and three about the size of
        each client per start or resume of the run
end     the last line of a run that has finished: ``rounds``, ``seconds``, ``model`` (path), ``best_round``,
        ``reason`` (why the run ended early, else empty). A resume removes this line
error   the last line of a run that failed or was stopped: ``reason``. A resume keeps this line. A ServerApp
        that was killed or interrupted writes neither ``end`` nor ``error``
======= ===============================================================================================

A ``round`` line holds ``round`` and, if the model was evaluated after the round (setting
``evaluate-every``), ``test_loss`` and ``test_accuracy``. Round 0 is the model before training. From round 1
on, the line also holds the following fields.

The selected clients:

- ``clients``: their indexes, in draw order. All lists up to ``staleness`` are aligned with this list.
- ``client_ids``, ``counts``, ``probabilities``, ``importance``, ``weights``
- ``responded``: whether the client's update was used
- ``update_norms``, ``train_losses``: the norms ‖g_m‖ and the losses that the selector learned from
- ``reported_norms``: the norm of the update, ‖w_m - w_t‖, as the client reports it, divided by the learning
  rate, before the guard clips it
- ``reply_seconds``: from the TRAIN message until the server had the reply; empty if not known for any client
- ``training_seconds``, ``batteries`` (%): as the clients report them; empty if no client does
- ``staleness``: how many rounds ended while the client trained; empty unless rounds are buffered

Clients that did not take part, or not as expected:

- ``failures``, ``clipped``: lists of objects, each with a ``client`` and a ``reason``
- ``num_stale``: the number of updates that were rejected as too stale; 0 unless rounds are buffered
- ``in_flight``: ids of the first 1000 clients that train when a buffered round ends
- ``quarantined``: ids of the available clients that were left out because they were in quarantine
- ``silent``: ids of the clients in ``quarantined`` that are in quarantine for silence or errors
- ``absent``: indexes of the clients that were not selectable; null if they are more than 1000
- ``num_available``: the number of selectable clients
- ``eligible``: the conditions of the setting ``eligible`` in this round
- ``num_ineligible``: how many clients are online and willing to train, but do not meet these conditions

The round:

- ``skipped``: why the round left the model unchanged; empty if it changed the model
- ``train_loss``: the mean of ``train_losses``, weighted by ``weights``
- ``seconds``: the time from the poll to the new model
- ``phases``: the seconds of the parts of the round (``poll``, ``train``, ``aggregate``); empty if the engine
  sends no messages
- ``messages_sent``, ``bytes_sent``, ``messages_received``, ``bytes_received``: since the line of the previous
  round; missing if the engine sends no messages
- ``group_metrics``: the ``loss`` and ``accuracy`` of each group, on the samples of the group's clients that
  evaluated the model

Readers ignore unknown types and keys. NaN and infinite numbers are written as null. Texts may come from
clients: `RunHistory.read` replaces control characters in all texts by escapes; `Tail` and `read_lines` do
not.
"""

from .parsing import FILE_NAME, TOLD_TO_END, VERSION, Line, VersionError, read_lines
from .reader import RunHistory, no_history, read_run
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
    "no_history",
    "read_lines",
    "read_run",
]
