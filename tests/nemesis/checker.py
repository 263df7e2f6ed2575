"""Checks what is left of a run against what its clients trained.

Written without the product's aggregation: plain NumPy in float64, from the lines of the history.
"""

import json
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from .updates import fingerprint, num_examples, trained

TOLERANCE = 1e-4  # absolute; the product sums in float32. A missing or doubled update moves weights by 0.05


@dataclass
class Verdict:
    """What the checker found."""

    violations: list[str] = field(default_factory=list)
    rounds: int = 0
    skipped: int = 0
    replies: int = 0
    failures: int = 0
    models: int = 0
    """Saved models that were compared with the replay."""
    largest_error: float = 0.0
    """Of all weights of all saved models."""


def check(history, trainings, models, *, clients_per_round, last=None):
    """Check a run that has ended.

    Every reply counts at most once and in its own round; the history holds each round once, in order; each
    saved model is what the replies that the history names make of the model before.

    Parameters
    ----------
    history : Path
        The run's history.jsonl; its selector is md, so that the weight of each client follows from its size.
    trainings : Path
        The clients' own logs.
    models : mapping of int to arrays
        The models of some rounds, as they were saved.
    last : arrays, optional
        The model with which the run ended.
    """
    verdict = Verdict()
    lines = read_lines(history)
    rounds = [line for line in lines if line["type"] == "round"]
    _check_order(lines, rounds, verdict)
    model = _first_model(trainings, verdict)
    if model is None:
        verdict.violations.append("no client has trained in round 1")
        return verdict
    seen = _trainings(trainings)
    for line in rounds[1:]:
        number, sent = line["round"], fingerprint(model)
        verdict.rounds += 1
        verdict.failures += len(line["failures"])
        clients = [int(name.rpartition("-")[2]) for name in line["client_ids"]]
        weights = _weights(line, clients, clients_per_round, verdict)
        step = {name: np.zeros(array.shape) for name, array in model.items()}
        for client, weight, responded, norm in zip(
            clients, weights, line["responded"], line["update_norms"], strict=True
        ):
            if not responded:
                continue
            verdict.replies += 1
            if not any(np.allclose(sent, each, atol=TOLERANCE) for each in seen.get((client, number), ())):
                verdict.violations.append(
                    f"round {number}: client {client} replied, but has not trained this round's model"
                )
            moved = {n: after - model[n] for n, after in trained(client, number, model).items()}
            length = float(np.sqrt(sum(np.square(each).sum() for each in moved.values())))
            if not abs(norm - length) <= 1e-3 * length:
                verdict.violations.append(
                    f"round {number}: the update of client {client} has norm {length:.6g}, not {norm:.6g}"
                )
            for name, each in moved.items():
                step[name] += weight * each
        if line["skipped"]:
            verdict.skipped += 1
        model = {name: (array + step[name]).astype(np.float64) for name, array in model.items()}
        if number in models:
            _compare(f"round {number}: the model of its checkpoint", models[number], model, verdict)
    if last is not None:
        _compare("the model at the end", last, model, verdict)
    return verdict


def read_lines(history):
    """Return the lines of a history; each must be complete."""
    return [json.loads(line) for line in history.read_text().splitlines()]


def _check_order(lines, rounds, verdict):
    numbers = [line["round"] for line in rounds]
    if numbers != list(range(len(numbers))):
        odd = [pair for pair in pairwise(numbers) if pair[1] != pair[0] + 1]
        verdict.violations.append(f"rounds do not follow one another, (before, after): {odd[:5]}")
    if lines[-1]["type"] != "end":
        verdict.violations.append(f"the last line is not the run's end: {str(lines[-1])[:200]}")
    elif lines[-1]["rounds"] != numbers[-1]:
        verdict.violations.append(f"the run ended after round {lines[-1]['rounds']}, not {numbers[-1]}")
    if [line["type"] for line in lines].count("end") > 1:
        verdict.violations.append("the run ended more than once")


def _first_model(trainings, verdict):
    found = []
    for path in sorted(trainings.glob("first-model-*.npz")):
        with np.load(path) as arrays:
            found.append({name: arrays[name].astype(np.float64) for name in arrays.files})
    for other in found[1:]:
        _compare("the first model of another client", other, found[0], verdict)
    return found[0] if found else None


def _trainings(folder):
    """Return, by (client, round), the fingerprints of the models that the client trained to the end."""
    found = {}
    for path in folder.glob("*.jsonl"):
        begun = {}  # by process and round
        for text in path.read_text().splitlines():
            line = json.loads(text)
            key = line["pid"], line["born"]
            if line["event"] == "begin":
                begun[key] = line["model"]
            elif key in begun:
                found.setdefault((line["client"], line["round"]), []).append(begun[key])
    return found


def _weights(line, clients, clients_per_round, verdict):
    """Return the weights that the clients must have, and compare them with the recorded ones.

    With md a client that was drawn n times of K has the weight n/K; if at most K clients are available, all
    are selected and have their share of the samples. Missing replies scale the others up, by S / S'.
    """
    number, counts = line["round"], line["counts"]
    if len(set(clients)) < len(clients):
        verdict.violations.append(f"round {number}: a client was selected twice: {clients}")
    offenders = sorted(set(line["quarantined"]) - set(line["silent"]))  # a fault may keep a client silent
    if line["clipped"] or offenders:
        verdict.violations.append(
            f"round {number}: honest clients clipped or quarantined: {line['clipped']} {offenders}"
        )
    failed = {int(each["client"].rpartition("-")[2]) for each in line["failures"]}
    replied = sum(line["responded"])
    if line["skipped"]:
        if replied:
            verdict.violations.append(f"round {number} was skipped with {replied} replies")
    else:
        missing = {c for c, responded in zip(clients, line["responded"], strict=True) if not responded}
        if failed != missing:
            verdict.violations.append(f"round {number}: {missing} are missing, recorded are {failed}")
    if line["num_available"] <= clients_per_round:
        total = sum(map(num_examples, clients))
        shares = [num_examples(client) / total for client in clients]
    else:
        shares = [count / clients_per_round for count in counts]
    scale = len(clients) / replied if replied else 0.0
    weights = [
        share * scale if responded else 0.0
        for share, responded in zip(shares, line["responded"], strict=True)
    ]
    if not np.allclose(weights, line["weights"], rtol=1e-9, atol=1e-12):
        verdict.violations.append(f"round {number}: weights are {line['weights']}, not {weights}")
    return weights


def _compare(what, saved, replayed, verdict):
    verdict.models += 1
    if saved.keys() != replayed.keys():
        verdict.violations.append(f"{what} has arrays {sorted(saved)}, not {sorted(replayed)}")
        return
    error = max(float(np.abs(saved[name] - replayed[name]).max(initial=0)) for name in saved)
    verdict.largest_error = max(verdict.largest_error, error)
    if not error <= TOLERANCE:
        verdict.violations.append(f"{what} differs from the replay by {error:.3g}")
