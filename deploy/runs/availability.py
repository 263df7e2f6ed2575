"""The availability of the clients in a batched simulation, from the settings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from server.settings import parse_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploy.runs.trials import Trial
    from simulation.availability import Availability

BIN = 3600.0  # seconds of a recorded trace that a round takes, unless the setting says otherwise


def availability_of(settings: Mapping[str, Any], num_clients: int, seed: int) -> Availability | None:
    """Return the availability process of a run, or None if all clients are always available.

    Parameters
    ----------
    settings : Mapping[str, Any]
        The settings of the run, of which ``availability`` and ``availability-trace`` are read. A missing
        setting counts as "".
    num_clients : int
        The number of clients, at least 1.
    seed : int
        The seed of the run.

    Raises
    ------
    ValueError
        If a setting is wrong, or the file is missing or has another form. The message names the setting.
    """
    text, file = (str(settings.get(key, "")) for key in ("availability", "availability-trace"))
    if not (text or file):
        return None
    from simulation.availability import create
    from simulation.availability.recording import Recording, read_trace

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


def check_availability(trials: Sequence[Trial], *, batched: bool) -> None:
    """Refuse settings of availability that are wrong, or that are not for the batched engine.

    Raises
    ------
    ValueError
        If the settings are wrong, or if they are given although `batched` is false. With other engines, the
        clients themselves report whether they are available.
    """
    for trial in trials:
        config = trial.run_config
        for key in ("availability", "availability-trace"):
            if config.get(key) and not batched:
                raise ValueError(
                    f"{key} = {config[key]!r}: needs simulate --engine batched; with other engines, clients "
                    "report their availability themselves"
                )
        availability_of(config, int(config["num-clients"]), int(config["seed"]))
