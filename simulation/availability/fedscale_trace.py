"""Reads behaviour traces of devices: FedScale's file ``client_behave_trace`` as JSON, see `device_file`."""

from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from strategies.numerics.arrays import Floats

from ..device_file import read_devices

_PERIODS = 1000
"""The largest allowed ratio of the longest ``finish_time`` to the shortest. A device with a short period
is repeated until the longest period ends, so above this ratio its rows could fill the memory."""


def read_fedscale_trace(path: str | Path) -> Floats:
    """Read a behaviour trace: a JSON object that maps the name of each device to an object.

    The object of a device has these entries; all other entries are ignored:

    - ``active`` and ``inactive``: lists of equal length, in seconds, with ascending times. The device is
      available from ``active[i]`` to ``inactive[i]``.
    - ``finish_time``: the device's period in seconds, > 0. After the period, the device starts again at 0, as
      in FedScale's simulator.

    A device with a shorter period is repeated until the end of the longest period of all devices.

    Returns
    -------
    ndarray, shape (R, 3)
        (device, start, end) in seconds, in the form that `trace_file.read_trace` returns, with devices in the
        order of `read_devices`. A device that is never available has one row, whose end equals its start.

    Raises
    ------
    OSError, ValueError
        As `read_devices`, or if a device does not have this form. The message names the file, the device, the
        entry, its value and what is allowed.
    """
    found = read_devices(path)
    devices = [_device(f"{path}: device {name!r}", entry) for name, entry in found.items()]
    periods = np.array([period for _, period in devices])
    longest = float(periods.max())
    for name, period in zip(found, periods, strict=True):
        if period * _PERIODS < longest:
            raise ValueError(
                f"{path}: device {name!r}: finish_time = {period:g}: must be at least "
                f"{longest / _PERIODS:g}, 1/{_PERIODS} of the longest finish_time"
            )
    rows = [np.empty((0, 3))]
    for number, (spans, period) in enumerate(devices):
        shifts = np.arange(np.ceil(longest / period)) * period
        starts, ends = ((spans[:, column] + shifts[:, None]).ravel() for column in (0, 1))
        kept = starts < longest
        mine = np.column_stack([np.full(kept.sum(), number), starts[kept], np.minimum(ends[kept], longest)])
        rows.append(mine if len(mine) else np.array([[number, 0.0, 0.0]]))
    return np.concatenate(rows)


def _device(where: str, entry: Any) -> tuple[Floats, float]:
    """Return the spans (n, 2) in which a device is available, and the device's period."""
    if not isinstance(entry, dict):
        raise ValueError(
            f"{where} = {_short(entry)}: must be an object with active, inactive and finish_time"
        )
    period: Any = entry.get("finish_time")
    if not _is_time(period) or period <= 0:
        raise ValueError(f"{where}: finish_time = {_short(period)}: must be a number of seconds > 0")
    for name in ("active", "inactive"):
        times = entry.get(name)
        if not isinstance(times, list) or not all(map(_is_time, times)):
            raise ValueError(f"{where}: {name} = {_short(times)}: must be a list of seconds >= 0")
    active, inactive = entry["active"], entry["inactive"]
    if len(active) != len(inactive):
        raise ValueError(
            f"{where}: inactive has {len(inactive)} entries: must have as many as active, {len(active)}"
        )
    before = 0.0
    for place, (start, end) in enumerate(zip(active, inactive, strict=True)):
        if not before <= start <= end:
            raise ValueError(
                f"{where}: active[{place}] = {start:g} and inactive[{place}] = {end:g}: must be at least "
                f"{before:g}, in ascending order"
            )
        before = end
    if before > period:
        raise ValueError(
            f"{where}: finish_time = {period:g}: must be at least {before:g}, the device's last inactive"
        )
    return np.column_stack([active, inactive]).astype(np.float64).reshape(-1, 2), float(period)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
