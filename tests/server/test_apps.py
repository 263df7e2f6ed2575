"""The two apps together, in process: a run config goes in, a history and a model come out."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, Context, Message, RecordDict
from flwr.common.config import parse_config_args
from flwr.serverapp.strategy import QFedAvg
from safetensors.numpy import load_file

import client.app
import server.app
import tasks
from deploy.runs.trials import parse_setting
from server.history import HistoryWriter
from server.recording import UnchangedModelError
from server.settings import RunSettings, errors_in_names_of_the_run, parse_settings
from strategies.clients.reports import STATUS
from strategies.options import GuardSettings

from ..support.toy_grid import ToyGrid, node_of

ROOT = Path(__file__).parents[2]
DEFAULTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def history_of(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def federation(folder, num_clients=6, *, node_configs=None, before_answer=lambda message: None, **settings):
    """Run a federation whose clients answer after a quarter of a second, and return its history.

    Clients may have node configs of their own. `before_answer` may look at each message, or raise an error.
    """
    if node_configs is None:
        node_configs = {}
    config = {
        **DEFAULTS,
        "num-clients": num_clients,
        "num-rounds": 4,
        "output-dir": str(folder or ""),
        **{name.replace("_", "-"): value for name, value in settings.items()},
    }
    grid = ToyGrid({})

    def node(m):
        own = {"partition-id": m, "num-partitions": num_clients, **node_configs.get(m, {})}
        answer = node_of(client.app.app, own, config)

        def after_a_quarter_of_a_second(message):
            grid.clock.sleep(0.25)
            before_answer(message)
            return answer(message)

        return after_a_quarter_of_a_second

    grid.nodes = {1000 + m: node(m) for m in range(num_clients)}
    server.app.app(grid, Context(1, 1, {}, RecordDict(), config))
    return history_of(folder) if folder else []


def test_the_history_holds_the_whole_run(tmp_path):
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
        for key in ("probabilities", "importance", "weights", "responded", "update_norms", "train_losses"):
            assert len(line[key]) == size, key
        assert line["reply_seconds"] == pytest.approx([0.25 * size] * size)  # of the grid's clock
        assert len(line["training_seconds"]) == size
        assert all(0 < each < 60 for each in line["training_seconds"])
        assert line["batteries"] == []
        assert line["reported_norms"] == pytest.approx(line["update_norms"], rel=1e-4)
        assert line["failures"] == []
        assert line["num_available"] == 6
        assert line["seconds"] == pytest.approx(0.25 * size)
        assert line["phases"] == {"poll": 0, "train": pytest.approx(0.25 * size), "aggregate": 0}
    assert rounds[-1]["test_loss"] < rounds[0]["test_loss"]

    model = load_file(lines[-1]["model"])
    task = tasks.create("digits")
    assert task.evaluate(model, task.test_data()).loss == pytest.approx(rounds[-1]["test_loss"])


def test_the_history_counts_messages_and_bytes(tmp_path):
    """Power-of-Choice sends the model to all candidates, and to those selected once more."""
    uniform = federation(tmp_path / "uniform", selector="uniform")
    power = federation(tmp_path / "pow-d", selector="pow-d", selector_settings="num-candidates=6")
    model = sum(len(Array(array).data) for array in tasks.create("digits").initial_arrays(1).values())
    for lines, polled in ((uniform, 0), (power, 6)):
        for line in (each for each in lines if each["type"] == "round" and each["round"] > 1):
            trained = len(line["clients"])
            assert line["messages_sent"] == line["messages_received"] == polled + trained
            assert line["bytes_sent"] == (polled + trained) * model
            assert line["bytes_received"] == trained * model


def test_private_groups_are_those_of_the_partition(tmp_path):
    """Every round was void: no client had a private group."""
    settings = "group-shares=2:2/0:1/1:1 epsilon=8"
    lines = federation(
        tmp_path, selector="flics-private", selector_settings=settings, partition="groups:3", num_rounds=12
    )
    rounds = [line for line in lines if line["type"] == "round" and line["round"] > 0]
    assert not any(line["failures"] for line in rounds)
    assert sum(len(line["clients"]) for line in rounds) > 12
    assert rounds[-1]["test_loss"] < 0.9 * rounds[0]["test_loss"]
    (roster,) = (line for line in lines if line["type"] == "roster")
    assert set(roster["client_groups"]) == {None}  # the server knows nobody's


def test_the_same_seed_is_the_same_run(tmp_path):
    def essence(folder, seed):
        lines = federation(tmp_path / folder, seed=seed)
        keys = ("clients", "probabilities", "update_norms", "test_loss")
        return [tuple(str(line.get(key)) for key in keys) for line in lines if line["type"] == "round"]

    first = essence("a", 5)
    assert first == essence("b", 5)
    assert first != essence("c", 6)


def test_a_failed_run_writes_the_reason_into_its_history(tmp_path):
    with pytest.raises(ValueError, match="alpha = 7"):
        federation(tmp_path, selector_settings="alpha=7")
    config = {**DEFAULTS, "num-clients": 6, "join-deadline": 0.1, "output-dir": str(tmp_path)}
    with pytest.raises(RuntimeError, match=r"0 of 6 clients .*joined"):
        server.app.app(ToyGrid({}), Context(1, 1, {}, RecordDict(), config))
    last = history_of(tmp_path)[-1]
    assert last["type"] == "error"
    assert last["reason"] == (
        "NotEnoughClientsError: 0 of 6 clients joined within 0.1 s (join deadline); 0 nodes are online. A "
        "new run needs clients-per-round = 3 of them: let more clients join, or lower clients-per-round and "
        "num-clients"
    )


@pytest.mark.parametrize(
    ("message", "in_names_of_the_run"),
    [
        ("faults.quorum = 5: must be <= clients_per_round", "quorum = 5: must be <= clients-per-round"),
        (
            "server_strategy = FedAdam() with mode = Buffered(...)",
            "server-strategy = FedAdam with mode = 'buffered'",
        ),
        ("use a mode.concurrency above mode.size", "use a concurrency above buffer-size"),
        (
            "1 client (min_available_clients) in 3 s (deadlines.join)",
            "1 client (num-clients) in 3 s (join-deadline)",
        ),
        ("overrides.sizes['local_steps'] = -1", "client-sizes['local_steps'] = -1"),
        ("/runs/data_dir: mode.max_staleness = 3", "/runs/data_dir: max-staleness = 3"),
        ("eligible = 'data_dir=*': no num_rounds.", "eligible = 'data_dir=*': no num-rounds."),
        ("smoothness = 1, local_learning_rate = None", "smoothness = 1, local_learning_rate = None"),
    ],
)
def test_errors_of_the_strategy_name_the_settings_of_the_run(message, in_names_of_the_run):
    with pytest.raises(RuntimeError) as raised, errors_in_names_of_the_run():
        raise RuntimeError(message, 3)
    assert raised.value.args == (in_names_of_the_run, 3)


def test_the_file_of_priorities_becomes_overrides(tmp_path):
    file = tmp_path / "priorities.json"
    file.write_text('{"shares": "equal", "every": {"client-00": 2}}')
    overrides = RunSettings.from_run_config({**DEFAULTS, "priorities": str(file)}).strategy_options[
        "overrides"
    ]
    assert (overrides.shares, overrides.every, overrides.group_shares) == ("equal", {"client-00": 2}, {})


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        ('{"evry": {}}', "^priorities = .*: has 'evry': must have only shares, group_shares, every$"),
        ("[]", "^priorities = .*: must hold a JSON object$"),
        ('{"shares": "equals"}', "^priorities.shares = 'equals': must be"),
        ('{"every": {"client-00": 0}}', r"^priorities.every\['client-00'\] = 0: must be >= 1$"),
    ],
)
def test_wrong_priorities_are_refused_by_name(tmp_path, content, refused):
    file = tmp_path / "priorities.json"
    file.write_text(content)
    with pytest.raises((TypeError, ValueError), match=refused), errors_in_names_of_the_run():
        _ = RunSettings.from_run_config({**DEFAULTS, "priorities": str(file)}).strategy_options


def test_real_clients_have_no_simulated_availability(tmp_path):
    with pytest.raises(ValueError, match=r"^availability = 'poisson': must be '': clients report when"):
        federation(tmp_path, availability="poisson")


def test_a_run_that_trained_nothing_failed(tmp_path):
    def fail(message):
        if message.metadata.message_type != STATUS:
            raise OSError("no disk")

    with pytest.raises(UnchangedModelError, match="no round changed the model: all 2 were skipped"):
        federation(tmp_path, 3, before_answer=fail, num_rounds=2)
    lines = history_of(tmp_path)
    assert lines[-1]["type"] == "error"
    assert lines[-1]["reason"] == (
        "UnchangedModelError: no round changed the model: all 2 were skipped. The commonest reason, in 2: "
        "error 2: <class 'OSError'>:<'no disk'>"
    )
    assert lines[-2]["failures"][0]["reason"] == "error 2: <class 'OSError'>:<'no disk'>"
    assert not (tmp_path / "model.safetensors").exists()


def test_a_second_run_does_not_overwrite_the_first(tmp_path):
    federation(tmp_path)
    before = (tmp_path / "history.jsonl").read_bytes()
    with pytest.raises(FileExistsError):
        federation(tmp_path)
    assert (tmp_path / "history.jsonl").read_bytes() == before


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    federation(None, 3, num_rounds=1)
    assert list(tmp_path.iterdir()) == []


def test_history_writes_what_json_cannot_hold_as_null(tmp_path):
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
def test_a_node_with_a_wrong_config_is_refused(node_config, message):
    ToyGrid({})  # outside a run, Flower needs an identity to make messages
    question = Message(RecordDict(), 1, STATUS)
    with pytest.raises(ValueError, match=message):
        node_of(client.app.app, node_config, DEFAULTS)(question)


def test_every_setting_has_a_default_and_every_default_is_valid():
    aliases = {field.alias for field in RunSettings.model_fields.values()}
    assert aliases == set(DEFAULTS)
    RunSettings.from_run_config(DEFAULTS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clients-per-round": 12}, r"^clients-per-round = 12: must be between 1 and 10 \(the number of"),
        ({"clients-per-round": 0}, r"^clients-per-round = 0: must be greater than or equal to 1$"),
        ({"num-rounds": "many"}, r"^num-rounds = 'many': must be a valid integer"),
        ({"num-rounds": 2.5}, r"^num-rounds = 2\.5: must be a valid integer"),
        ({"num-rounds": True}, r"^num-rounds = True: must be a valid integer"),
        ({"task": "imagenet"}, r"^task = 'imagenet': must be one of digits, digits-mlp, mnist, "),
        ({"partition": "iid"}, r"^partition = 'iid': must be one of skewed\[:N\], balanced\[:N\], "),
        ({"partition": 0.3}, r"^partition = 0.3: must be a valid string$"),
        ({"data-dir": 3}, r"^data-dir = 3: must be a valid string$"),
        ({"selector": "best"}, r"^selector = 'best': must be one of uniform, md, "),
        ({"selector-settings": "alpha=0"}, r"alpha = 0"),
        ({"selector-settings": "beta=1"}, r"beta"),
        ({"selector-settings": "alpha"}, r"selector-settings = 'alpha': 'alpha' must be of the form"),
        ({"selector": "uniform", "selector-settings": "replacement=3"}, r"replacement = 3"),
        ({"learning-rate": float("nan")}, r"^learning-rate = nan: must be a finite number$"),
        ({"round-deadline": -1}, r"^round-deadline = -1: must be greater than 0$"),
        ({"selector": "lipschitz-is"}, r"^client-settings has no 'lipschitz': lipschitz-is must have it"),
        ({"selector": "flics", "correction": "rates"}, r"^correction = 'rates': must be 'equal' with"),
        ({"mode": "async"}, r"^mode = 'async': .*'rounds' or 'buffered'"),
        ({"mode": "buffered"}, r"^concurrency = 0: must be at least 1 with mode = 'buffered'"),
        ({"mode": "buffered", "concurrency": 2}, r"^concurrency = 2: must be at least 3, the number"),
        ({"concurrency": 5}, r"^concurrency = 5: needs mode = 'buffered'$"),
        ({"buffer-size": 5}, r"^buffer-size = 5: needs mode = 'buffered'$"),
        ({"concurrency": -1}, r"^concurrency = -1: must be greater than or equal to 0"),
        ({"buffer-size": 1.5}, r"^buffer-size = 1.5: must be a valid integer"),
        ({"max-staleness": -1}, r"^max-staleness = -1: must be greater than or equal to 0"),
        ({"staleness-power": 11.0}, r"^staleness-power = 11.0: must be less than or equal to 10"),
        ({"count-busy": 1}, r"^count-busy = 1: must be a valid boolean"),
        (
            {"mode": "buffered", "concurrency": 6, "selector": "pow-d"},
            r"^selector = 'pow-d' with mode = 'buffered': must not poll candidates",
        ),
        (
            {"mode": "buffered", "concurrency": 6, "masked-updates": True},
            r"^masked-updates = True with mode = 'buffered': .* \(mode = 'rounds'\)$",
        ),
        (
            {"mode": "buffered", "concurrency": 6, "variates": "scaffold"},
            r"^variates = 'scaffold' with mode = 'buffered': the variates .* are outdated .*; use FedProx "
            r"against client drift, or mode = 'rounds'$",
        ),
        ({"learning-rate": "fast"}, r"^learning-rate = 'fast': must be a number, or .*20@1/10@100"),
        ({"learning-rate": "0.5@1/0@9"}, r"^learning-rate = '0.5@1/0@9': must be finite and greater than 0$"),
        ({"learning-rate": "0.5@9/0.1@1"}, r"^learning-rate = .*ascending rounds"),
        ({"server-strategy": "Adam"}, r"^server-strategy = 'Adam': no such server strategy \(did you mean"),
        ({"server-strategy": "FedAdam:lr=3"}, r"^server-strategy = 'FedAdam': lr = 3: FedAdam has no such"),
        ({"server-strategy": "FedAdam:eta=0"}, r"^server-strategy = 'FedAdam': eta = 0.0: must be finite"),
        ({"server-strategy": "FedAdam:eta"}, r"^server-strategy = 'FedAdam:eta': .* must be of the form"),
        ({"server-strategy": "FedProx"}, r"^server-strategy = 'FedProx': must have proximal-mu above 0; "),
        (
            {"server-strategy": "FedProx:proximal-mu=0.1", "proximal-mu": 0.2},
            r"^proximal-mu = 0.2: must be 0.1, as in server-strategy, or 0$",
        ),
        ({"server-strategy": "FedMedian"}, r"^server-strategy = FedMedian with selector = 'forecast'"),
        (
            {"server-strategy": "QFedAvg", "selector": "md", "learning-rate": "0.5@1/0.1@9"},
            r"^server-strategy = 'QFedAvg': must have client-learning-rate if learning-rate is a schedule$",
        ),
        ({"variates": "svrg"}, r"^variates = 'svrg': must be '', 'fedvarp', 'fedvarp-mean' or 'scaffold'$"),
        (
            {"variates": "scaffold", "selector": "flics-private", "selector-settings": "group-shares=1"},
            r"with variates = 'scaffold' the server remembers each client's update",
        ),
        ({"proximal-mu": -1.0}, r"^proximal-mu = -1.0: must be greater than or equal to 0$"),
        ({"wire": "float8"}, r"^wire = 'float8': must be 'float32' or 'float16'$"),
        ({"wire": "float16", "masked-updates": True}, r"^wire = 'float16': must be 'float32' with masked-"),
        ({"masked-updates": 1}, r"^masked-updates = 1: must be a valid boolean$"),
        (
            {"masked-updates": True, "server-strategy": "FedMedian", "selector": "md"},
            r"^server-strategy = FedMedian with masked-updates = True: must step from the average",
        ),
        ({"selector": "delta", "local-steps": 1}, r"^local-steps = 1: must be at least 2 with selector ="),
        ({"client-settings": "/no/file"}, r"^client-settings = '/no/file': cannot be read: "),
        ({"client-sizes": "/no/file"}, r"^client-sizes = '/no/file': cannot be read: "),
        ({"guard": "lax"}, r"^guard = 'lax': must be 'sane' or 'strict', or false for no guard$"),
        ({"guard": 1}, r"^guard = 1: must be 'sane' or 'strict', or false for no guard$"),
        ({"rounds": 3}, r"^rounds = 3: unknown setting \(did you mean num-rounds\?\)$"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(wrong, message):
    with pytest.raises(ValueError, match=message):
        RunSettings.from_run_config({**DEFAULTS, **wrong})


@pytest.mark.parametrize(
    ("text", "level"), [("sane", "sane"), ("strict", "strict"), ("true", "sane"), ("false", False)]
)
def test_the_guard_is_set_by_level(text, level):
    """`--set` and COHORT_SET, whose words `parse_setting` reads, and `flwr run --run-config`."""
    quoted = text if text in ("true", "false") else f"'{text}'"
    for given in (dict([parse_setting(f"guard={text}")]), parse_config_args([f"guard={quoted}"])):
        settings = RunSettings.from_run_config({**DEFAULTS, **given})
        assert settings.model_dump()["guard"] == level  # as in the history
        guard = settings.faults.guard_settings
        assert guard == (GuardSettings(level=level) if isinstance(level, str) else None)


def test_all_wrong_settings_are_named_at_once():
    with pytest.raises(ValueError, match=r"batch-size = 0.*\n?.*") as error:
        RunSettings.from_run_config({**DEFAULTS, "seed": -1, "batch-size": 0})
    assert len(str(error.value).splitlines()) == 2


def test_a_missing_setting_is_named():
    with pytest.raises(ValueError, match="num-rounds: missing from the run config"):
        RunSettings.from_run_config({name: value for name, value in DEFAULTS.items() if name != "num-rounds"})


def test_selector_settings_are_read_from_one_string():
    assert parse_settings("tim-aware=True other=False") == {"tim_aware": True, "other": False}
    assert parse_settings("alpha=0.4 learning-rate-multiplier=100,replacement=false rates=v1") == {
        "alpha": 0.4,
        "learning_rate_multiplier": 100,
        "replacement": False,
        "rates": "v1",
    }


def losses(folder, **settings):
    lines = federation(folder, 4, num_rounds=3, selector="uniform", **settings)
    return [line["test_loss"] for line in lines if line["type"] == "round"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return losses(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    ("setting", "first_changed"),
    [
        ({"server_strategy": "FedAvgM:server-momentum=0.5"}, 2),  # the first step has no momentum
        ({"server_strategy": "FedAdam:eta=0.05"}, 1),
        ({"variates": "fedvarp"}, 2),  # nobody has a memory before
        ({"variates": "scaffold"}, 2),
        ({"proximal_mu": 0.5}, 1),
        ({"server_strategy": "FedProx:proximal-mu=0.5"}, 1),
        ({"learning_rate": "0.5@1/0.1@3"}, 3),
    ],
)
def test_a_setting_reaches_the_rounds(tmp_path, plain, setting, first_changed):
    for round, (one, other) in enumerate(zip(plain, losses(tmp_path / "run", **setting), strict=True)):
        assert (abs(one - other) < 1e-6) == (round < first_changed), (round, one, other)


def test_q_fedavg_has_the_learning_rate_of_the_run():
    config = {**DEFAULTS, "selector": "md", "server-strategy": "QFedAvg:q=0.5", "learning-rate": 0.25}
    strategy = RunSettings.from_run_config(config).strategy().server_strategy
    assert isinstance(strategy, QFedAvg)
    assert (strategy.q, strategy.client_learning_rate) == (0.5, 0.25)


def test_a_schedule_and_the_proximal_term_hold_for_the_query_of_norms(tmp_path):
    """The norms of the query before round 1 are those of the learning rate and the loss of round 1."""
    runs = [
        federation(tmp_path / str(i), selector_settings="ask-norms=true", **settings)
        for i, settings in enumerate(
            (
                {"learning_rate": 0.5, "proximal_mu": 0.1},
                {"learning_rate": "0.5@0/0.1@2", "server_strategy": "FedProx:proximal-mu=0.1"},
            )
        )
    ]
    one, other = ([line["probabilities"] for line in lines if line.get("round") == 1] for lines in runs)
    assert one == other
    assert len({round(p, 6) for p in one[0]}) > 1


def test_half_precision_changes_nothing_but_rounding_and_halves_the_bytes(tmp_path):
    full, half = (
        [line for line in federation(tmp_path / wire, selector="md", wire=wire) if line.get("round", 0)]
        for wire in ("float32", "float16")
    )
    for one, other in zip(full, half, strict=True):
        assert one["clients"] == other["clients"]
        assert other["test_loss"] == pytest.approx(one["test_loss"], rel=1e-3)
        assert other["update_norms"] == pytest.approx(one["update_norms"], rel=1e-2)
        assert other["update_norms"] != one["update_norms"]
        assert not other["failures"]
        assert other["bytes_sent"] == pytest.approx(one["bytes_sent"] / 2, rel=0.1)
        assert other["bytes_received"] == pytest.approx(one["bytes_received"] / 2, rel=0.1)


def test_the_selectors_settings_per_client_come_from_a_file(tmp_path):
    names = [f"client-{m:02d}" for m in range(6)]
    file = tmp_path / "lipschitz.json"
    file.write_text(json.dumps({"lipschitz": dict(zip(names, [1, 1, 1, 1, 1, 95], strict=True))}))
    lines = federation(tmp_path / "run", selector="lipschitz-is", client_settings=str(file))
    for line in (each for each in lines if each.get("round", 0)):
        assert "client-05" in line["client_ids"]
    file.write_text('{"lipschitz": {"client-00": 0}}')
    with pytest.raises(ValueError, match=r"^client-settings\['lipschitz'\] holds 0"):
        RunSettings.from_run_config({**DEFAULTS, "selector": "lipschitz-is", "client-settings": str(file)})
    file.write_text('{"client-00": 3}')
    with pytest.raises(ValueError, match=r"^client-settings = .*: must be of the form "):
        RunSettings.from_run_config({**DEFAULTS, "selector": "lipschitz-is", "client-settings": str(file)})
