"""Measured speeds of devices, from FedScale's file ``client_device_capacity`` as JSON, see `device_file`."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from strategies.numerics.arrays import Floats
from strategies.numerics.streams import generator

from .device_file import read_devices

LARGEST = 1_000_000_000  # bytes of a file
PASSES = 3  # a forward and a backward pass take as long as three forward passes (FedScale's simulator)


class DeviceSpeeds(NamedTuple):
    """The measured speeds of D devices."""

    milliseconds: Floats
    """(D,) milliseconds of a forward pass for one sample, > 0."""
    kilobits: Floats
    """(D,) kilobits that a device transfers in a second, > 0."""

    def seconds(self, samples: float, megabytes: float) -> Floats:
        """Return (D,) the seconds of a round of ``samples`` and ``megabytes`` each way, as FedScale does."""
        found: Floats = PASSES * samples * self.milliseconds / 1000 + megabytes * 8000 / self.kilobits
        return found

    def assigned(self, num_clients: int, seed: int) -> "DeviceSpeeds":
        """Return (M,) the clients' devices by ``seed`` >= 0; all are used once before one is used twice."""
        order = generator(seed, 0, "device speeds").permutation(self.milliseconds.size)
        places = np.resize(order, num_clients)
        return DeviceSpeeds(self.milliseconds[places], self.kilobits[places])


def read_device_speeds(path: str | Path) -> DeviceSpeeds:
    """Read devices' speeds: a JSON object that maps the name of each device to an object.

    The object of a device has ``computation``, in milliseconds for one sample, and ``communication``, in
    kilobits a second; both > 0. All other entries are ignored. Devices are in the order of `read_devices`.

    Raises the errors of `read_devices`, and a ValueError if an entry is missing or not > 0. The message names
    the file, the device, the entry, its value and what is allowed.
    """
    if (size := Path(path).stat().st_size) > LARGEST:
        raise ValueError(f"{path}: has {size} bytes: must have at most {LARGEST}")
    devices = read_devices(path)
    numbers = np.empty((2, len(devices)))
    for place, (name, entry) in enumerate(devices.items()):
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
