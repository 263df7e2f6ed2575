"""The simulator alone: its options, its state, and rounds without usable replies."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedAvgM, FedProx

from simulation.availability import Availability, InOrderOfArrival
from simulation.kernels import Softmax
from simulation.response_times import ResponseTimes
from strategies.options import Faults

from ..support.simulators import data_of, simulator_of, start


def test_an_update_that_is_not_finite_is_left_out_and_spoils_nothing():
    data = data_of()
    data.inputs[data.offsets[7]] = np.nan
    for steps in (1, 2):
        simulator = simulator_of(
            data, selector="full", clients_per_round=10, batch_size=64, local_steps=steps
        )
        record = simulator.step()
        assert record.failures == {7: "the norm of the update is not finite"}
        assert all(np.isfinite(array).all() for array in simulator.arrays.values())
        assert record.weights[7] == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"server_strategy": FedAdam(eta=0.1)},
        {"server_strategy": FedAvgM(server_momentum=0.9)},
        {"variates": "fedvarp", "faults": Faults(guard=True)},
        {"selector": "prac-delta"},
    ],
    ids=["plain", "adam", "momentum", "varp", "delta"],
)
def test_a_simulation_goes_on_from_its_state_bit_for_bit(options):
    one, other = simulator_of(**options), simulator_of(**options)
    one.run(4)
    state = one.state_dict()
    one.run(3)
    other.load_state_dict(state)
    other.run(3)
    assert other.round == 7
    for key, array in one.arrays.items():
        assert np.array_equal(array, other.arrays[key])


def test_a_client_of_a_group_without_a_share_is_named_before_round_1():
    with pytest.raises(ValueError, match=r"client 1 cannot take part: its group is 'west': must be one of"):
        simulator_of(
            data_of((10,) * 3),
            selector="flics",
            selector_settings={"groups": ["a", "west", "a"], "group_shares": {"a": 1.0}},
        )


def test_a_client_must_be_available_in_round_1():
    with pytest.raises(ValueError, match="no client is available in round 1"):
        InOrderOfArrival(Nobody(10), num_rounds=3)


def test_late_replies_are_left_out():
    times = ResponseTimes(10, seed=1)
    seconds = times.seconds(1)
    deadline = float(np.sort(seconds)[5:7].mean())
    simulator = simulator_of(
        selector="full", clients_per_round=10, response_times=times, round_deadline=deadline
    )
    record = simulator.step()
    assert set(record.failures) == set(np.argsort(seconds)[6:].tolist())
    assert record.seconds == deadline
    expected = seconds[record.selection.clients]
    np.testing.assert_array_equal(record.reply_seconds, np.where(expected <= deadline, expected, np.nan))
    assert simulator_of().step().reply_seconds.size == 0  # all clients reply at once
    nobody = simulator_of(response_times=ResponseTimes(10, seed=1), round_deadline=1e-9)
    assert nobody.step().skipped
    assert not nobody.arrays["weight"].any()


def test_mu_of_flowers_fedprox_reaches_local_training():
    theirs = simulator_of(server_strategy=FedProx(proximal_mu=0.5), local_steps=3)
    ours = simulator_of(proximal_mu=0.5, local_steps=3)
    plain = simulator_of(local_steps=3)
    for simulator in (theirs, ours, plain):
        simulator.run(2)
    assert np.array_equal(theirs.arrays["weight"], ours.arrays["weight"])
    assert not np.array_equal(plain.arrays["weight"], ours.arrays["weight"])


class Nobody(Availability):
    def _available(self, round):
        return np.arange(10) if round == 2 else np.empty(0, dtype=np.int64)


@pytest.mark.parametrize("selector", ["uniform", "cpow-d", "pow-d", "delta", "fed-is", "optimal", "forecast"])
@pytest.mark.parametrize("guard", [False, True])
def test_a_round_without_available_clients_is_skipped(selector, guard):
    simulator = simulator_of(selector=selector, availability=Nobody(10), faults=Faults(guard=guard))
    skipped = [record.skipped for record in simulator.run(3)]
    assert skipped == ["no client was selected", "", "no client was selected"]


def test_a_client_with_nan_samples_spoils_no_diversities():
    data = data_of()
    data.inputs[data.offsets[3]] = np.nan
    assert not any(record.skipped for record in simulator_of(data, selector="delta").run(4))


def test_the_guard_judges_poll_reports():
    data = data_of((20,) * 10)
    data.inputs[data.offsets[3] : data.offsets[4]] *= 1e4
    options = {"initial_arrays": start(Softmax(64, 10)), "selector_settings": {"num_candidates": 10}}
    records = simulator_of(
        data,
        selector="pow-d",
        faults=Faults(guard="strict"),
        clients_per_round=2,
        learning_rate=1e-4,
        **options,
    ).run(3)
    assert "loss" in records[0].clipped[3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_steps": 2.5}, "local_steps = 2.5: must be a whole number"),
        ({"client_sizes": [1.0] * 11}, r"client_sizes of shape \(11,\): must be \(10,\), one per client"),
        ({"faults": Faults(quorum=4)}, "faults.quorum = 4: must be between 1 and 3"),
        ({"round_deadline": -1.0}, "round_deadline = -1.0"),
        ({"proximal_mu": np.inf}, "proximal_mu = inf"),
        ({"response_times": ResponseTimes(5)}, "response_times is of 5 clients: must be of 10"),
        ({"selector": "delta", "local_steps": 1}, "local_steps = 1 with selector = 'delta'"),
        ({"local_steps": 0}, "local_steps = 0, local_epochs = 0: exactly one must be above 0"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"learning_rate": -1.0}, "learning_rate = -1.0"),
        ({"selector": "flics-private", "selector_settings": {"group_shares": [0.5, 0.5]}}, "messages"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        simulator_of(**options)


def test_a_client_without_samples_is_refused():
    data = data_of((5, 4))._replace(offsets=np.array([0, 5, 5, 9]))
    with pytest.raises(ValueError, match="client 1 has no samples"):
        simulator_of(data, clients_per_round=1)


def test_arguments_of_a_wrong_type_are_refused():
    with pytest.raises(TypeError, match=r"availability = 0\.3: must be an Availability, such as"):
        simulator_of(availability=0.3)
    with pytest.raises(TypeError, match="data is of type FederatedData: must be a Dataset"):
        simulator_of().evaluate(data_of())


def test_only_eligible_clients_are_selected():
    names = [f"{'site' if m < 5 else 'lab'}-{m}" for m in range(10)]
    simulator = simulator_of(selector="uniform", clients_per_round=2, eligible="site-*", client_names=names)
    for record in simulator.run(6):
        assert record.selection.clients.max() < 5
        assert (record.num_available, record.num_ineligible, record.eligible) == (5, 5, "site-*")
    with pytest.raises(ValueError, match=r"eligible = 'ward-\*': no client meets this; the names are"):
        simulator_of(eligible="ward-*")
    with pytest.raises(ValueError, match="knows names and groups only"):
        simulator_of(eligible="charging=true")
