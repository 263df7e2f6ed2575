"""Made-up histories, in the form that `server.history` writes; comparisons of histories."""

import json

import numpy as np
import pytest

from server.history import VERSION, RunHistory

SIZES = [10, 20, 30, 60]
# What a simulation without messages does not have.
TRAFFIC = {"messages_sent", "bytes_sent", "messages_received", "bytes_received"}


def write_history(
    folder,
    losses,
    selector="uniform",
    selector_settings="",
    clients=(),
    *,
    end=True,
    error="",
    started="2026-01-01T00:00:00.000+00:00",
):
    """Write a history with one test loss a round (round 0 first) and read it again.

    In each round `clients` (default: 0 and 3) are drawn: the first twice, the others once. A loss of None
    stands for one that was not finite, as in the file.
    """
    lines = [
        {
            "type": "run",
            "version": VERSION,
            "selector": selector,
            "selector_settings": selector_settings,
            "num_rounds": len(losses) - 1,
            "started": started,
        },
        {"type": "round", "round": 0, "test_loss": losses[0], "test_accuracy": 0.1},
        {
            "type": "roster",
            "client_ids": [f"client-{i:02d}" for i in range(len(SIZES))],
            "client_sizes": SIZES,
        },
    ]
    for round, loss in enumerate(losses[1:], start=1):
        drawn = list(clients[round - 1]) if clients else [0, 3]
        lines.append(
            {
                "type": "round",
                "round": round,
                "clients": drawn,
                "client_ids": [f"client-{i:02d}" for i in drawn],
                "counts": [2, *[1] * (len(drawn) - 1)][: len(drawn)],
                "probabilities": [0.25] * len(drawn),
                "responded": [position == 0 for position in range(len(drawn))],
                "failures": [{"client": f"client-{i:02d}", "reason": "late"} for i in drawn[1:]],
                "train_loss": None if loss is None else loss + 0.1,
                "test_loss": loss,
                "test_accuracy": 0.1 if loss is None else 1 - loss / 10,
                "seconds": 2.0,
                "of no interest": None,
            }
        )
    if end:
        lines.append({"type": "end", "rounds": len(losses) - 1, "seconds": 9.0, "model": None})
    if error:
        lines.append({"type": "error", "reason": error})
    folder.mkdir(parents=True)
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = RunHistory(folder / "history.jsonl")
    history.read()
    return history


def check_same_rounds(batched, exchanged):
    """Assert that the batched simulation's rounds are those of a run with messages, up to rounding."""
    for one, other in zip(batched, exchanged, strict=True):
        assert one.keys() == other.keys() - TRAFFIC
        for key in ("clients", "client_ids", "counts", "failures", "num_available", "responded", "skipped"):
            assert one.get(key) == other.get(key)
        for key in ("weights", "probabilities", "update_norms", "reported_norms", "test_loss"):
            np.testing.assert_allclose(one.get(key, 0), other.get(key, 0), rtol=1e-4)
        measured, expected = one.get("group_metrics", {}), other.get("group_metrics", {})
        assert measured.keys() == expected.keys()
        for group, metrics in measured.items():
            assert metrics == pytest.approx(expected[group], rel=1e-4)
