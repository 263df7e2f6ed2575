"""Reads measured speeds of devices from JSON, in the form that FedScale publishes (Lai et al. 2022).

FedScale's file ``client_device_capacity`` is a pickle. Reading a pickle can run any code, so Cohort does not
read it. docs/simulation.md has the command that converts a pickle, on a machine where you trust the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from strategies.json_text import parse_json
from strategies.numerics.arrays import Floats
from strategies.numerics.streams import generator

PASSES = 3  # a forward and a backward pass take as long as three forward passes (FedScale's simulator)
LARGEST = 1_000_000_000  # bytes of a file


class DeviceSpeeds(NamedTuple):
    """The measured speeds of D devices."""

    milliseconds: Floats
    """(D,) milliseconds of a forward pass for one sample, > 0."""
    kilobits: Floats
    """(D,) kilobits that a device transfers in a second, > 0."""

    def seconds(self, samples: float, megabytes: float) -> Floats:
        """Return (D,) the seconds of each device for a round, as FedScale's simulator computes them.

        Parameters
        ----------
        samples : float
            The samples that a client trains on in a round: steps × batch size, >= 0.
        megabytes : float
            The data that a client receives and sends in a round, in units of 10^6 bytes, >= 0.
        """
        found: Floats = PASSES * samples * self.milliseconds / 1000 + megabytes * 8000 / self.kilobits
        return found

    def assigned(self, num_clients: int, seed: int) -> DeviceSpeeds:
        """Give each client a device. A device is used a second time only after all devices were used once.

        Parameters
        ----------
        num_clients : int
            M, >= 1.
        seed : int
            Seed of the order of the devices, >= 0.

        Returns
        -------
        DeviceSpeeds
            Entry m is the device of client m.
        """
        order = generator(seed, 0, "device speeds").permutation(self.milliseconds.size)
        places = np.resize(order, num_clients)
        return DeviceSpeeds(self.milliseconds[places], self.kilobits[places])


def read_device_speeds(path: str | Path) -> DeviceSpeeds:
    """Read devices' speeds: a JSON object that maps the name of each device to an object.

    The object of a device has ``computation``, in milliseconds for one sample, and ``communication``, in
    kilobits a second; both > 0. All other entries are ignored.

    Returns
    -------
    DeviceSpeeds
        Devices in the order of their names, or in numerical order if all names are whole numbers.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the file is larger than a gigabyte, or does not have this form. The message names the file, the
        device, the entry, its value and what is allowed.
    """
    if (size := Path(path).stat().st_size) > LARGEST:
        raise ValueError(f"{path}: has {size} bytes: must have at most {LARGEST}")
    try:
        content = parse_json(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: must be a JSON file: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: must be an object with an entry for each device, at least one")
    whole = all(name.isdecimal() for name in content)
    names = sorted(content, key=int) if whole else sorted(content)
    numbers = np.empty((2, len(names)))
    for place, name in enumerate(names):
        entry = content[name]
        if not isinstance(entry, dict):
            raise ValueError(f"{path}: device {name!r}: must be an object with computation and communication")
        for row, (key, unit) in enumerate(
            (("computation", "milliseconds"), ("communication", "kilobits a second"))
        ):
            value = entry.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
                raise ValueError(
                    f"{path}: device {name!r}: {key} = {str(value)[:60]}: must be a number of {unit} > 0"
                )
            numbers[row, place] = value
    return DeviceSpeeds(*numbers)
