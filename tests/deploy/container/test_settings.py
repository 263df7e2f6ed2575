"""The environment gives the settings of a run."""

import sys

import pytest
from flwr.common.config import parse_config_args

from deploy.container import DATA, DEVICES, client, client_names
from deploy.container.client import node_config
from deploy.container.settings import trials_from_environment


def test_client_names_sort_by_number():
    assert client_names(3) == ["client-00", "client-01", "client-02"]
    assert client_names(101) == sorted(client_names(101))


def test_the_environment_gives_the_settings_of_a_run(tmp_path):
    environment = {
        "COHORT_CLIENTS": "4",
        "COHORT_ROUNDS": "7",
        "COHORT_PER_ROUND": "",  # as docker-compose.yml passes an unset variable
        "COHORT_SELECTOR": "uniform  osmd:alpha=0.3",
        "COHORT_SET": "round-deadline=9 local-steps=2 server-strategy=FedAdam:eta=0.05,tau=0.01 "
        "learning-rate=0.5@1/0.1@5 proximal-mu=0.1",
    }
    trials = trials_from_environment(tmp_path, environment)
    assert [trial.run_config["selector"] for trial in trials] == ["uniform", "osmd"]
    assert trials[1].run_config["selector-settings"] == "alpha=0.3"
    for trial in trials:
        assert trial.run_config["num-clients"] == 4
        assert trial.run_config["num-rounds"] == 7
        assert trial.run_config["round-deadline"] == 9
        assert trial.run_config["local-steps"] == 2
        assert trial.run_config["server-strategy"] == "FedAdam:eta=0.05,tau=0.01"
        assert trial.run_config["learning-rate"] == "0.5@1/0.1@5"
        assert trial.run_config["proximal-mu"] == 0.1
        assert trial.run_config["removed-clients"] == str(DEVICES / "revoked.json")
        assert "clients-per-round" not in trial.run_config
        assert trial.run_config["output-dir"] == str(tmp_path / trial.name)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"COHORT_ROUNDS": "0"}, "^COHORT_ROUNDS = 0: must be greater than or equal to 1$"),
        ({"COHORT_ROUNDS": "many"}, "^COHORT_ROUNDS = 'many': must be a valid integer$"),
        ({"COHORT_CLIENTS": "2"}, r"^COHORT_PER_ROUND = 3: must be between 1 and 2 \(the number of"),
        ({"COHORT_SELECTOR": "best"}, "^COHORT_SELECTOR = 'best': must be one of .*uniform"),
        ({"COHORT_SELECTOR": "md md"}, "^COHORT_SELECTOR = 'md': given twice$"),
        ({"COHORT_TASK": "letters"}, "^COHORT_TASK = 'letters': must be one of digits, digits-mlp, "),
        ({"COHORT_SET": "quick"}, "^COHORT_SET = 'quick': must be of the form key=value$"),
        ({"COHORT_SET": "seed=3"}, "^COHORT_SET = seed=3: use COHORT_SEED for this setting$"),
        ({"COHORT_SET": "output-dir=x"}, "^COHORT_SET = output-dir=x: cannot be given here$"),
        ({"COHORT_GROUPS": "a'b"}, '^COHORT_GROUPS = "a\'b": must be names without quotes'),
        ({"COHORT_COSTS": "1 -2"}, "^COHORT_COSTS = '-2': must be finite numbers of at least 0"),
        ({"COHORT_ENERGIES": "nan"}, "^COHORT_ENERGIES = 'nan': must be"),
        (
            {"COHORT_SELECTOR": "flics-private:group-shares=a:1/b:2", "COHORT_PRIVATE_GROUPS": "a c"},
            "^COHORT_SELECTOR = 'flics-private': client-01 cannot take part: its group is 'c': must be",
        ),
        (
            {"COHORT_SELECTOR": "flics-private:group-shares=a:1/b:2", "COHORT_GROUPS": "a b"},
            "^COHORT_SELECTOR = 'flics-private': client-00 cannot take part: its group is None",
        ),
        (
            {"COHORT_SELECTOR": "flics:energy-budgets=a:1/b:2", "COHORT_GROUPS": "a b"},
            "^COHORT_SELECTOR = 'flics': its budgets need the energies of the clients: declare",
        ),
        ({"COHORT_SET": "learning-rate=-1"}, "^learning-rate = -1: must be greater than 0$"),
    ],
)
def test_a_wrong_setting_is_named_by_its_variable(tmp_path, environment, message):
    with pytest.raises(ValueError, match=message):
        trials_from_environment(tmp_path, environment)


def test_the_clients_of_a_cluster_have_groups_costs_and_energies(tmp_path):
    environment = {
        "COHORT_CLIENTS": "4",
        "COHORT_SELECTOR": "flics:group-shares=north:2/south:1,cost-budget=5 flics-private:group-shares=1/1",
        "COHORT_GROUPS": "north south",
        "COHORT_PRIVATE_GROUPS": "0 1 1",
        "COHORT_COSTS": "1 2.5",
    }
    trials = trials_from_environment(tmp_path, environment)
    assert trials[0].run_config["selector-settings"] == "group-shares=north:2/south:1 cost-budget=5"
    assert [node_config(number, environment) for number in (0, 3)] == [
        {"group": "north", "private-group": "0", "cost": 1.0},
        {"group": "south", "private-group": "0", "cost": 2.5},
    ]
    assert node_config(0, {"COHORT_GROUPS": ""}) == {}
    # Without the variables, the groups are those of the partition.
    environment = {"COHORT_SELECTOR": "flics-private:group-shares=1/1/1", "COHORT_SET": "partition=groups:3"}
    assert len(trials_from_environment(tmp_path, environment)) == 1


def test_buffered_rounds_are_settings_of_a_cluster(tmp_path):
    environment = {"COHORT_SET": "mode=buffered concurrency=6 buffer-size=2 staleness-power=0"}
    (trial,) = trials_from_environment(tmp_path, environment)
    assert trial.run_config["mode"] == "buffered"
    assert trial.run_config["concurrency"] == 6
    with pytest.raises(ValueError, match=r"concurrency = 2: must be at least 3, the number of arrivals"):
        trials_from_environment(tmp_path, {"COHORT_SET": "mode=buffered concurrency=2"})


def test_flower_reads_the_node_config_of_a_container(monkeypatch, tmp_path):
    for variable, values in {
        "COHORT_GROUPS": "north:1 süd",
        "COHORT_ENERGIES": "2.5 1e-3",
        "COHORT_PROPERTIES": "region=eu region=us,tags=a|b",
    }.items():
        monkeypatch.setenv(variable, values)
    command = client._command("client-01", client_names(3), tmp_path / "key")
    assert parse_config_args([command[command.index("--node-config") + 1]]) == {
        "client-id": "client-01",
        "partition-id": 1,
        "num-partitions": 3,
        "group": "süd",
        "energy": 0.001,
        "properties": "region=us,tags=a|b",
    }


def test_a_missing_cvxpy_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    environment = {"COHORT_SELECTOR": "flics:cost-budget=5", "COHORT_COSTS": "1"}
    with pytest.raises(ValueError, match=r"^cost_budget, energy_budgets: needs cvxpy: pip [^\n]*$"):
        trials_from_environment(tmp_path, environment)


def test_missing_data_are_named_by_the_variable_of_the_mounted_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COHORT_DATA", str(DATA))  # as in the images
    with pytest.raises(ValueError, match=r"^COHORT_DATA: there is no such file or folder$"):
        trials_from_environment(tmp_path, {"COHORT_TASK": "mnist"})
