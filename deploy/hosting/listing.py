"""Summaries of a server's runs and of each client's share in a run, from the runs' histories."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.runs.run_state import state_of
from server.history import FILE_NAME, RunHistory

RUN_ID = "flower-run"  # the file in a run's folder with the id of its last Flower run


@dataclass(frozen=True)
class Share:
    """What a client has done in a run."""

    selected: int = 0
    """Rounds in which the client was selected."""
    used: int = 0
    """Rounds in which the client's update was used."""
    contribution: float = 0.0
    """The client's share of the total weight of all used updates, 0 to 1."""
    claimed_size: float | None = None
    """The samples that the client claims to hold; None without a claim."""
    used_size: float | None = None
    """The data size from which the server computes the client's weights; None if the history lacks it."""

    @property
    def samples(self) -> str:
        """The claimed size, and the used size if it differs, as text."""
        claimed = "-" if self.claimed_size is None else f"{self.claimed_size:g}"
        used = "" if self.used_size is None else f"{self.used_size:g}"
        return f"{claimed}, used as {used}" if used and used != claimed else claimed


def shares(history: RunHistory) -> dict[str, Share]:
    """Return, for each client's identity, what the client has done in a run whose history has been read."""
    selected: dict[str, int] = defaultdict(int)
    used: dict[str, int] = defaultdict(int)
    weights: dict[str, float] = defaultdict(float)
    for line in history.trained:
        # An edited history may lack the weights.
        weights_of = line.get("weights") or [None] * len(line["client_ids"])
        columns = (line["client_ids"], line["responded"], weights_of)
        for client, responded, weight in zip(*columns, strict=True):
            selected[client] += 1
            if responded and not line.get("skipped"):
                used[client] += 1
                weights[client] += abs(weight or 0)
    total = sum(weights.values()) or 1.0
    claimed = dict(zip(history.client_ids, history.client_sizes, strict=True))
    sizes = dict(zip(history.client_ids, history.used_sizes, strict=True))
    return {
        client: Share(
            selected[client],
            used[client],
            weights[client] / total,
            claimed.get(client) or None,
            sizes.get(client),
        )
        for client in {**claimed, **selected}
    }


def read_runs(folder: Path) -> list[RunHistory]:
    """Read all runs in a server's folder of runs, and return them in the order of their names."""
    runs = [RunHistory(path) for path in sorted(folder.glob(f"*/{FILE_NAME}"))]
    for run in runs:
        run.read(skip_damaged=True)
    return runs


def describe(run: RunHistory) -> dict[str, Any]:
    """Return what `cohort server runs` prints about a run whose history has been read."""
    last: Mapping[str, Any] = run.rounds[-1] if run.rounds else {}
    note = run.path.parent / RUN_ID
    return {
        "run": run.path.parent.name,
        "state": state_of(run.end, run.path.parent),
        "selector": run.label,
        "round": last.get("round", 0),
        "rounds": run.settings.get("num_rounds"),
        "test_loss": last.get("test_loss"),
        "test_accuracy": last.get("test_accuracy"),
        "started": run.settings.get("started"),
        "flower_run": note.read_text() if note.exists() else None,
        "folder": str(run.path.parent),
    }


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines of text with aligned columns."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
