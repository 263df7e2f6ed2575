"""Availability and response times of the clients in a batched simulation, from the settings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from server.settings import parse_settings
from strategies.selectors.checks import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploy.engines.engine import Planned
    from simulation.availability import Availability
    from simulation.measured_speeds import DeviceSpeeds
    from simulation.response_times import ResponseTimes
    from strategies.numerics.arrays import Floats, Ints

# The settings that need a batched simulation, and what replaces them with other engines.
SIMULATED = {
    "availability": "clients report their availability themselves",
    "availability-trace": "clients report their availability themselves",
    "response-times": "the clients' response times are real",
    "device-speeds": "the clients' response times are real",
}
DISTRIBUTION = {"median", "sigma", "tail"}  # the settings that describe the distribution of response times
RESPONSE_TIMES = {*DISTRIBUTION, "jitter", "dropout"}
KNOWN = (*sorted(RESPONSE_TIMES), "group-factors")
BIN = 3600.0  # how many seconds of a recorded trace one round takes, by default


def availability_of(settings: Mapping[str, Any], num_clients: int, seed: int) -> Availability | None:
    """Return the availability process of a run, or None if all clients are always available.

    `settings`: the settings of the run, of which ``availability`` and ``availability-trace`` are read. A
    missing setting counts as "".
    """
    text, file = (str(settings.get(key, "")) for key in ("availability", "availability-trace"))
    if not (text or file):
        return None
    from simulation.availability import create
    from simulation.availability.trace_file import Recording, read_trace

    name, _, given = (text or "trace").partition(":")
    own = parse_settings(given, f"availability = {text!r}: its settings")
    if (name == "trace") != bool(file):
        needed = (
            "must name the recorded trace" if name == "trace" else "must be '': only 'trace' reads a file"
        )
        raise ValueError(f"availability-trace = {file!r}: {needed} (availability = {text!r})")
    try:
        if name == "trace":
            cut = {"bin_length": float(own.pop("bin_length", BIN)), "whole_bins": own.pop("whole_bins", True)}
            own["recording"] = Recording(read_trace(file), **cut)
        return create(name, num_clients, seed=seed, **own)
    except OSError as error:
        raise ValueError(f"availability-trace = {file!r}: cannot be read: {error.strerror}") from error
    except (TypeError, ValueError) as error:
        problem = str(error).removeprefix(f"name = {name!r}: ")
        raise ValueError(f"availability = {text!r}: {problem}") from error


def response_times_of(
    settings: Mapping[str, Any],
    num_clients: int,
    seed: int,
    groups: Ints | None = None,
    *,
    samples: float = 1.0,
    megabytes: float = 1.0,
) -> ResponseTimes | None:
    """Return the clients' response times in a run, or None if all clients reply at once.

    `settings`: the settings of the run, of which ``response-times`` and ``device-speeds`` are read. A missing
    setting counts as "". `groups`: the number of each client's group, for the setting ``group-factors``.
    Without groups, this setting is checked, but has no effect. `samples`, `megabytes`: the samples that a
    client trains on in a round, and the megabytes that a client receives and sends in a round. With
    ``device-speeds``, the seconds of a client follow from both. (default: 1)
    """
    text, file = (str(settings.get(key, "")) for key in ("response-times", "device-speeds"))
    if not (text or file):
        return None
    from simulation.response_times import ResponseTimes

    own = parse_settings(text, "response-times")
    try:
        work = _work(own.pop("group_factors", None), groups)
        if unknown := own.keys() - RESPONSE_TIMES:
            name = sorted(unknown)[0].replace("_", "-")
            raise ValueError(
                f"{name}: unknown{did_you_mean(name, KNOWN)}; the settings are {', '.join(KNOWN)}"
            )
        for name, value in own.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} = {value!r}: must be a number")
        if file:
            if twice := own.keys() & DISTRIBUTION:
                raise ValueError(f"{min(twice)}: cannot be combined with device-speeds = {file!r}")
            speeds = _speeds(file).assigned(num_clients, seed).seconds(samples, megabytes)
            return ResponseTimes(
                num_clients, seed, median=1, sigma=0, work=speeds if work is None else speeds * work, **own
            )
        return ResponseTimes(num_clients, seed, work=work, **own)
    except ValueError as error:
        if str(error).startswith("device-speeds"):
            raise
        raise ValueError(f"response-times = {text!r}: {error}") from error


def _speeds(file: str) -> DeviceSpeeds:
    from simulation.measured_speeds import read_device_speeds

    try:
        return read_device_speeds(file)
    except OSError as error:
        raise ValueError(f"device-speeds = {file!r}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"device-speeds = {error}") from error


def _work(factors: Any, groups: Ints | None) -> Floats | None:
    """Return (M,) the factor of each client's group: "1/4" is 1 for group 0 and 4 for group 1."""
    if factors is None:
        return None
    try:
        numbers = np.array([float(each) for each in str(factors).split("/")])
    except ValueError:
        numbers = np.zeros(0)
    if not (numbers.size and np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(
            f"group-factors = {factors!r}: must be numbers above 0, one for each group, such as 1/1/4"
        )
    if groups is None:
        return None
    if groups.max() >= numbers.size:
        raise ValueError(
            f"group-factors = {factors!r}: must be {groups.max() + 1} numbers, one for each group"
        )
    found: Floats = numbers[groups]
    return found


def check_availability(trials: Sequence[Planned], *, batched: bool) -> None:
    """Refuse settings of availability and response times that are wrong, or that the engine cannot use."""
    for trial in trials:
        config = trial.run_config
        for key, really in SIMULATED.items():
            if config.get(key) and not batched:
                raise ValueError(
                    f"{key} = {config[key]!r}: needs simulate --engine batched; with other engines, {really}"
                )
        response_times_of(config, int(config["num-clients"]), int(config["seed"]))
        availability_of(config, int(config["num-clients"]), int(config["seed"]))
