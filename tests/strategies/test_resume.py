"""A run that ends and is resumed is the run that never ended: in process, every selector, bit for bit."""

import dataclasses

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvgM

from strategies import SelectionStrategy, changed_rows, checkpoint, selectors
from strategies.checkpoint import CheckpointError, CheckpointFolder
from strategies.clients.reports import LOSS, STATUS
from strategies.options import Checkpoints, Faults, Overrides, Polling
from strategies.rounds.record import RoundRecord
from strategies.run.settings import RunSettings

from ..support.federations import config_of, model, play, reply, weights
from ..support.toy_grid import ToyGrid

NUM_CLIENTS = 6


def trainer(number):
    """A client whose answers are a function of the question: quadratic loss around (number, -number)."""
    center = np.array([number, -number], np.float32)

    def node(message):
        report = {"num_examples": 10.0 * (number + 1), "group": f"group {number % 2}"}
        if message.metadata.message_type == STATUS:
            return reply(message, client_id=f"c{number}", **report)
        w = weights(message)
        loss = float(np.square(w - center).sum())
        if message.metadata.message_type == LOSS:
            return reply(message, loss=loss)
        config = config_of(message)
        noise = np.random.default_rng(int(config["seed"])).standard_normal(2).astype(np.float32)
        gradient = w - center + 0.3 * noise
        control = message.content.array_records.get("control")
        if control is not None:
            gradient = gradient + control["w"].numpy()
        report |= {"train_loss": loss, "num_steps": 1, "gradient_variance": 0.1 + number}
        scales = config.get("part-scales")
        if scales is not None:  # two equal parts
            report |= {"num_parts": 2, "model_norm": 0.05 * loss**0.5, "personal_norm": 0.05 * loss**0.5}
            gradient = gradient * np.float32(sum(scales) / 2)
        moved = w - np.float32(0.1) * gradient.astype(np.float32)
        return reply(message, moved, update_norm=float(np.linalg.norm(moved - w)), **report)

    return node


def grid(clients=NUM_CLIENTS, first_node=1):
    return ToyGrid({first_node + number: trainer(number) for number in range(clients)})


def run(folder, rounds, *, on=None, resume=False, given=None, **options):
    options = {
        "selector": "adaptive-osmd", "clients_per_round": 3, "min_available_clients": NUM_CLIENTS, "seed": 5,
        "num_rounds": 6, "local_learning_rate": 0.1,
        "checkpoints": Checkpoints(folder, resume) if folder else None, **options,
    }  # fmt: skip
    played = play(on or grid(), rounds=rounds, start=model(1, 2), given=given or {}, **options)
    return played.result, played.records


def assert_same(ours, theirs):
    for field in dataclasses.fields(RoundRecord):
        one, other = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name in ("seconds", "phases"):
            continue
        if dataclasses.is_dataclass(one):
            for inner in dataclasses.fields(one):
                np.testing.assert_array_equal(getattr(one, inner.name), getattr(other, inner.name))
        else:
            np.testing.assert_equal(one, other)


# The clients of flics-private decide by messages of their own.
USABLE = [name for name in selectors.available() if name != "flics-private"]
VARIANTS = [
    *((name, lambda name=name: {"selector": name}) for name in USABLE if name != "lipschitz-is"),
    (
        "lipschitz-is",
        lambda: {
            "selector": "lipschitz-is",
            "overrides": Overrides(settings={"lipschitz": {"c1": 2.0, "c3": 9.0}}),
        },
    ),
    ("FedAvgM", lambda: {"server_strategy": FedAvgM(fraction_evaluate=0.0, server_momentum=0.9)}),
    ("FedAdam", lambda: {"server_strategy": FedAdam(fraction_evaluate=0.0)}),
    ("FedVARP", lambda: {"variates": "fedvarp"}),
    ("FedVARPMean", lambda: {"variates": "fedvarp-mean"}),
    ("SCAFFOLD", lambda: {"variates": "scaffold"}),
    ("schedule", lambda: {"selector": "osmd", "local_learning_rate": "0.1@1/0.05@3"}),
    ("rates", lambda: {"faults": Faults(correction="rates", over_selection=1.5)}),
]


def test_a_resume_without_a_client_of_the_checkpoint_says_so(tmp_path, caplog):
    line = f"None of the {NUM_CLIENTS} clients of the checkpoint is here"
    for asks, warnings in ((True, 0), (False, 1)):
        caplog.clear()
        folder, polling = tmp_path / str(asks), Polling(ask_status=asks, interval=1)
        run(folder, 1, polling=polling)
        run(folder, 3, on=grid(first_node=1000), resume=True, polling=polling)
        assert sum(each.startswith(line) for each in caplog.messages) == warnings


def test_a_resume_that_is_past_its_last_round_says_so(tmp_path, caplog):
    run(tmp_path, 2)
    _, records = run(tmp_path, 1, resume=True)
    assert not records
    assert "No round was run: the checkpoint, of round 2, is past round 1" in caplog.messages


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=[name for name, _ in VARIANTS])
def test_a_resumed_run_equals_an_uninterrupted_one(name, options, tmp_path, monkeypatch):
    """From full checkpoints, and from those that hold changes only, as of a run with 10,000 clients."""
    whole, records = run(None, 6, **options())
    assert [record.round for record in records] == [1, 2, 3, 4, 5, 6]
    for folder, stops in ((tmp_path / "full", (2, 3, 6)), (tmp_path / "changes", (4, 6))):
        if folder.name == "changes":
            monkeypatch.setattr(changed_rows, "MANY_ROWS", 1)
            monkeypatch.setattr(checkpoint._Base, "is_used_up", False)
        parts = []
        for rounds in stops:
            # At last with other node ids, as after a restart of a SuperLink without authentication.
            here = grid(first_node=100 if rounds == 6 else 1)
            resumed, part = run(folder, rounds, resume=True, on=here, **options())
            parts += part
        for ours, theirs in zip(parts, records, strict=True):
            assert_same(ours, theirs)
        assert np.array_equal(resumed.arrays["w"].numpy(), whole.arrays["w"].numpy())
        assert resumed.train_metrics_clientapp == whole.train_metrics_clientapp
    assert (folder / "round-00000004-00000001.npz").exists()


def test_late_joiners_are_still_there_after_a_resume(tmp_path):
    def history(stops):
        folder, records = tmp_path / str(len(stops)), []
        for rounds in stops:
            here = grid(NUM_CLIENTS if rounds <= 3 else NUM_CLIENTS + 2)
            records += run(folder, rounds, on=here, resume=True)[1]
        return records

    for ours, theirs in zip(history([3, 4, 6]), history([3, 6]), strict=True):
        assert_same(ours, theirs)


def test_a_run_that_is_over_does_nothing_more(tmp_path):
    whole, _ = run(tmp_path, 6)
    result, records = run(tmp_path, 6, resume=True, on=ToyGrid({}))
    assert records == []
    assert np.array_equal(result.arrays["w"].numpy(), whole.arrays["w"].numpy())
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 6  # each is written once


def test_a_resume_without_checkpoint_starts_anew(tmp_path):
    _, records = run(tmp_path / "new", 2, resume=True)
    assert [record.round for record in records] == [1, 2]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"server_strategy": FedAvgM(fraction_evaluate=0.5, server_momentum=0.8)},
            r"server_settings\.server_momentum = 0\.8: the run to be resumed has 0\.9$",
        ),
        ({"resume": False}, "holds a run; resume=True continues this run"),
        ({"seed": 6}, "seed = 6: the run to be resumed has 5"),
        ({"clients_per_round": 4}, "clients_per_round = 4: the run to be resumed has 3$"),
        ({"budget": 2}, r"= 3 with the budget Schedule\(.*\): the run to be resumed has 3$"),
        ({"selector": "md"}, "selector = 'md': the run to be resumed has 'adaptive-osmd'"),
        ({"selector_settings": {"alpha": 0.5}}, r"selector_settings\.alpha = '0\.5'"),
        ({"server_strategy": FedAdam(fraction_evaluate=0.0)}, "server_strategy = 'FedAdam'"),
        ({"faults": Faults(guard=False)}, "guard: not there|guard = "),
        ({"faults": Faults(guard="strict")}, r"guard\.level = 'strict': the run to be resumed has 'sane'"),
    ],
)
def test_another_runs_checkpoints_are_refused(changed, message, tmp_path):
    first = {"server_strategy": FedAvgM(fraction_evaluate=0.0, server_momentum=0.9)}
    run(tmp_path, 1, **first)
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path, 2, **{**first, "resume": True, **changed})


@pytest.mark.parametrize("level", ["strict", "sane"])
def test_a_checkpoint_of_before_the_guard_had_levels_is_one_of_the_level_strict(level, tmp_path):
    faults = Faults(guard=level)
    with pytest.MonkeyPatch.context() as patch:
        given = RunSettings.fixed

        def without_level(self, step):
            fixed = given(self, step)
            del fixed["guard"]["level"]
            return fixed

        patch.setattr(RunSettings, "fixed", without_level)
        run(tmp_path / "old", 1)
    if level == "strict":
        _, records = run(tmp_path / "old", 2, resume=True, faults=faults)
        assert [record.round for record in records] == [2]
    else:
        with pytest.raises(CheckpointError, match=r"guard\.level = 'sane': the run to be resumed has"):
            run(tmp_path / "old", 2, resume=True, faults=faults)


def test_a_folder_that_cannot_be_created_ends_the_run_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"checkpoints.folder = .*file/x: cannot be made .*: Not a"):
        run(tmp_path / "file" / "x", 1)


def test_a_run_stops_where_it_is_told_and_does_not_go_on_after_a_resume(tmp_path):
    def stop(round, metrics):
        return metrics["w"] >= 0.2

    def attempt(resume):
        seen = []
        strategy = SelectionStrategy(
            "uniform", clients_per_round=3, checkpoints=Checkpoints(tmp_path, resume), stop=stop
        )

        def evaluate(round, arrays):
            seen.append(round)
            return MetricRecord({"w": round / 10})

        strategy.start(grid(), model(1, 2), num_rounds=5, evaluate_fn=evaluate)
        return seen

    assert attempt(False) == [0, 1, 2]
    assert attempt(True) == []


def test_the_state_of_an_own_strategy_is_kept(tmp_path):
    class Slowing(FedAvgM):
        """Counts its rounds, in a state of its own."""

        steps_from_average = True
        count = 0

        def aggregate_train(self, server_round, replies):
            self.count += 1
            return super().aggregate_train(server_round, replies)

        def state_dict(self):
            return {"count": np.array(self.count)}

        def load_state_dict(self, state):
            self.count = int(state["count"])

    def made():
        return Slowing(fraction_evaluate=0.0, server_momentum=0.5)

    whole, _ = run(None, 4, server_strategy=made())
    run(tmp_path, 2, server_strategy=made())
    resumed, _ = run(tmp_path, 4, server_strategy=made(), resume=True)
    assert np.array_equal(resumed.arrays["w"].numpy(), whole.arrays["w"].numpy())


def rewritten(folder, change):
    """Change the notes in the newest checkpoint, as another version of Cohort would have written them."""
    file = max(folder.glob("round-*.npz"))
    checkpoint = CheckpointFolder(folder).newest()
    change(checkpoint.meta)
    file.unlink()
    other = CheckpointFolder(folder)
    other.save(checkpoint)
    other.release()


def test_a_checkpoint_of_another_version_is_resumed_or_refused_with_the_reason(tmp_path):
    """An operator who upgraded during a run read "KeyError: 'unasked'"."""
    run(tmp_path, 1)

    def older(meta):
        del meta["attendance"]["unasked"], meta["attendance"]["heard"]
        del meta["attendance"]["roster"]["properties"]

    rewritten(tmp_path, older)
    _, records = run(tmp_path, 2, resume=True)
    assert [record.round for record in records] == [2]
    rewritten(tmp_path, lambda meta: meta["attendance"]["roster"].pop("ids"))
    with pytest.raises(CheckpointError, match="have no 'ids', so another version of Cohort wrote them"):
        run(tmp_path, 3, resume=True)
