"""The two apps together, in process: a run config goes in, a history and a model come out."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from safetensors.numpy import load_file

import client.app
import server.app
import tasks
from server.history import HistoryWriter
from server.settings import RunSettings, parse_selector_settings
from strategies.clients.reports import STATUS

from ..support.toy_grid import Node, ToyGrid, node_of

ROOT = Path(__file__).parents[2]
DEFAULTS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
    "config"
]


def federation(folder: Path, num_clients: int = 6, **settings: Any) -> list[dict[str, Any]]:
    """Run a federation and return its history."""
    config = {
        **DEFAULTS,
        "num-clients": num_clients,
        "num-rounds": 4,
        "output-dir": str(folder),
        **{name.replace("_", "-"): value for name, value in settings.items()},
    }
    grid = ToyGrid({})

    def node(m: int) -> Node:
        answer = node_of(client.app.app, {"partition-id": m, "num-partitions": num_clients}, config)

        def after_a_quarter_of_a_second(message: Message) -> Any:
            grid.clock.sleep(0.25)
            return answer(message)

        return after_a_quarter_of_a_second

    grid.nodes = {1000 + m: node(m) for m in range(num_clients)}
    server.app.app(grid, Context(1, 1, {}, RecordDict(), config))
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_the_history_holds_the_whole_run(tmp_path: Path) -> None:
    lines = federation(tmp_path)
    assert [line["type"] for line in lines] == ["run", "round", "roster", *["round"] * 4, "end"]
    assert lines[0]["selector"] == "forecast"
    assert lines[0]["num_rounds"] == 4
    assert lines[2]["client_ids"] == [f"client-{m:02d}" for m in range(6)]
    assert sum(lines[2]["client_sizes"]) == 1437
    rounds = [line for line in lines if line["type"] == "round"]
    assert [line["round"] for line in rounds] == [0, 1, 2, 3, 4]
    for line in rounds[1:]:
        size = len(line["clients"])
        assert sum(line["counts"]) == 3
        assert line["client_ids"] == [f"client-{m:02d}" for m in line["clients"]]
        for key in ("probabilities", "weights", "responded", "update_norms", "train_losses"):
            assert len(line[key]) == size, key
        assert line["failures"] == []
        assert line["num_available"] == 6
        assert line["seconds"] == pytest.approx(0.25 * size)
    assert rounds[-1]["test_loss"] < rounds[0]["test_loss"]

    model = load_file(lines[-1]["model"])
    task = tasks.create("digits")
    assert task.evaluate(model, task.test_data()).loss == pytest.approx(rounds[-1]["test_loss"])


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    def essence(folder: str, seed: int) -> list[tuple[Any, ...]]:
        lines = federation(tmp_path / folder, seed=seed)
        keys = ("clients", "probabilities", "update_norms", "test_loss")
        return [tuple(str(line.get(key)) for key in keys) for line in lines if line["type"] == "round"]

    first = essence("a", 5)
    assert first == essence("b", 5)
    assert first != essence("c", 6)


def test_a_failed_run_writes_the_reason_into_its_history(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="alpha = 7"):
        federation(tmp_path, selector_settings="alpha=7")
    config = {**DEFAULTS, "num-clients": 6, "join-deadline": 0.1, "output-dir": str(tmp_path)}
    with pytest.raises(RuntimeError, match=r"0 of 6 clients .*joined"):
        server.app.app(ToyGrid({}), Context(1, 1, {}, RecordDict(), config))
    last = json.loads((tmp_path / "history.jsonl").read_text().splitlines()[-1])
    assert last["type"] == "error"
    assert "0 of 6 clients" in last["reason"]


def test_a_run_that_trained_nothing_failed(tmp_path: Path) -> None:
    config = {**DEFAULTS, "num-clients": 3, "num-rounds": 2, "output-dir": str(tmp_path)}
    nodes = {m: node_of(client.app.app, {"partition-id": m, "num-partitions": 3}, config) for m in range(3)}

    def fails(node: Node) -> Node:
        def answer(message: Message) -> Any:
            if message.metadata.message_type == STATUS:
                return node(message)
            raise OSError("no disk")

        return answer

    grid = ToyGrid({number: fails(node) for number, node in nodes.items()})
    with pytest.raises(RuntimeError, match="no round brought usable replies"):
        server.app.app(grid, Context(1, 1, {}, RecordDict(), config))
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines[-1]["type"] == "error"
    assert lines[-2]["failures"][0]["reason"] == "error 2: <class 'OSError'>:<'no disk'>"
    assert not (tmp_path / "model.safetensors").exists()


def test_a_second_run_does_not_overwrite_the_first(tmp_path: Path) -> None:
    federation(tmp_path)
    before = (tmp_path / "history.jsonl").read_bytes()
    with pytest.raises(FileExistsError):
        federation(tmp_path)
    assert (tmp_path / "history.jsonl").read_bytes() == before


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = {**DEFAULTS, "num-clients": 3, "num-rounds": 1}
    nodes = {m: node_of(client.app.app, {"partition-id": m, "num-partitions": 3}, config) for m in range(3)}
    server.app.app(ToyGrid(nodes), Context(1, 1, {}, RecordDict(), config))
    assert list(tmp_path.iterdir()) == []


def test_history_writes_what_json_cannot_hold_as_null(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        history.write(
            "round", loss=float("nan"), norms=np.array([1.0, np.inf]), chosen=np.array([True]), n=np.int64(3)
        )
    line = json.loads((tmp_path / "h.jsonl").read_text())
    assert line == {"type": "round", "loss": None, "norms": [1.0, None], "chosen": [True], "n": 3}


@pytest.mark.parametrize(
    ("node_config", "message"),
    [
        ({}, "partition-id = None in the node's config"),
        ({"partition-id": 1}, "num-partitions = None"),
        ({"partition-id": "1", "num-partitions": 3}, "partition-id = '1'"),
        ({"partition-id": 3, "num-partitions": 3}, "partition-id = 3: must be between 0 and 2"),
    ],
)
def test_a_node_with_a_wrong_config_is_refused(node_config: dict[str, Any], message: str) -> None:
    ToyGrid({})  # outside a run, Flower needs an identity to make messages
    question = Message(RecordDict(), 1, STATUS)
    with pytest.raises(ValueError, match=message):
        node_of(client.app.app, node_config, DEFAULTS)(question)


def test_every_setting_has_a_default_and_every_default_is_valid() -> None:
    aliases = {field.alias for field in RunSettings.model_fields.values()}
    assert aliases == set(DEFAULTS)
    RunSettings.from_run_config(DEFAULTS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"clients-per-round": 12},
            r"^clients-per-round = 12: must be between 1 and 10 \(the number of clients\)$",
        ),
        ({"clients-per-round": 0}, r"^clients-per-round = 0: must be greater than or equal to 1$"),
        ({"num-rounds": "many"}, r"^num-rounds = 'many': must be a valid integer"),
        ({"num-rounds": 2.5}, r"^num-rounds = 2\.5: must be a valid integer"),
        ({"num-rounds": True}, r"^num-rounds = True: must be a valid integer"),
        ({"task": "imagenet"}, r"^task = 'imagenet': must be one of digits, digits-mlp, mnist, "),
        ({"selector": "best"}, r"^selector = 'best': must be one of uniform, md, "),
        ({"selector-settings": "alpha=0"}, r"alpha = 0"),
        ({"selector-settings": "beta=1"}, r"beta"),
        (
            {"selector-settings": "alpha"},
            r"selector-settings = 'alpha': 'alpha' must be of the form name=value",
        ),
        ({"selector": "uniform", "selector-settings": "replacement=3"}, r"replacement = 3"),
        ({"learning-rate": float("nan")}, r"^learning-rate = nan: must be a finite number$"),
        ({"round-deadline": -1}, r"^round-deadline = -1: must be greater than 0$"),
        ({"selector": "lipschitz-is"}, r"^overrides.settings has no 'lipschitz': lipschitz-is must have it"),
        ({"selector": "flics", "correction": "rates"}, r"^correction = 'rates': must be 'equal' with"),
        ({"rounds": 3}, r"^rounds = 3: unknown setting; the settings are selector, "),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RunSettings.from_run_config({**DEFAULTS, **wrong})


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"batch-size = 0.*\n?.*") as error:
        RunSettings.from_run_config({**DEFAULTS, "seed": -1, "batch-size": 0})
    assert len(str(error.value).splitlines()) == 2


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ValueError, match="num-rounds: missing from the run config"):
        RunSettings.from_run_config({name: value for name, value in DEFAULTS.items() if name != "num-rounds"})


def test_selector_settings_are_read_from_one_string() -> None:
    assert parse_selector_settings(
        "alpha=0.4 learning-rate-multiplier=100,replacement=false expert_base=K2"
    ) == {
        "alpha": 0.4,
        "learning_rate_multiplier": 100,
        "replacement": False,
        "expert_base": "K2",
    }
