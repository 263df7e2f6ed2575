"""Whether this device should train now: not paused, enough power, cool, not on a network that costs.

Each question is asked only if the node's config sets its limit, so that a server or a simulated client
never looks at a battery. What the system does not tell speaks for training.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SYS = Path("/sys/class")
ROUTES = Path("/proc/net/route")
CPU_SENSORS = (
    "cpu",
    "soc",
    "x86_pkg",
    "k10temp",
)  # phones have dozens of other sensors, some of them nonsense
MOBILE = ("wwan", "ppp", "rmnet")  # names of network interfaces that are a modem
NETWORK_MANAGER = "org.freedesktop.NetworkManager"
ANSWER_TIMEOUT = 5.0  # s; Termux's commands hang where the Termux:API app is missing


class Power(NamedTuple):
    """What the battery says."""

    percent: float
    charging: bool  # or on mains, with the battery full


def why_unavailable(limits: Mapping[str, object]) -> str | None:
    """Return why this device should not train now, or None if it may.

    Parameters
    ----------
    limits : Mapping[str, object]
        The node's config, of which these count, each if it is there:
        ``pause-file`` (a path; while the file exists the user wants no training),
        ``min-battery`` (%, in [0, 100]; less, and not charging, is too little),
        ``max-temperature`` (degrees Celsius of the processor; more is too hot) and
        ``allow-metered`` (whether a network that costs by the byte may be used).

    Raises
    ------
    ValueError
        If one of them is of the wrong type or out of range.
    """
    pause_file = limits.get("pause-file")
    if pause_file is not None and Path(str(pause_file)).exists():
        return "paused by its user"
    least = _number(limits, "min-battery", 0, 100)
    if least is not None and (power := battery()) and not power.charging and power.percent < least:
        return f"battery at {power.percent:.0f} % (min-battery {least:g} %) and not charging"
    most = _number(limits, "max-temperature", 0, 150)
    if most is not None and (heat := temperature()) is not None and heat > most:
        return f"processor at {heat:.0f} °C (max-temperature {most:g} °C)"
    allowed = limits.get("allow-metered", True)
    if not isinstance(allowed, bool):
        raise ValueError(f"allow-metered = {allowed!r} in the node's config: must be true or false")
    if not allowed and is_metered():
        return "on a metered network (allow-metered is false)"
    return None


def battery() -> Power | None:
    """Return the state of the fullest battery that powers this device; None if there is none to be seen."""
    found = []
    on_mains = False
    for supply in sorted(SYS.glob("power_supply/*")):
        kind = _read(supply / "type")
        if kind == "Battery" and _read(supply / "scope") != "Device":  # not that of a mouse
            try:
                charge = float(_read(supply / "capacity"))
            except ValueError:  # Android hides it
                continue
            found.append(Power(charge, _read(supply / "status") in ("Charging", "Full", "Not charging")))
        elif kind in ("Mains", "USB"):
            on_mains |= _read(supply / "online") == "1"
    if found:
        best = max(found)  # of two, the fuller
        return best._replace(charging=best.charging or on_mains)
    said = _termux("termux-battery-status") or {}
    left = said.get("percentage")
    if not isinstance(left, int | float):
        return None
    return Power(float(left), said.get("plugged", "UNPLUGGED") != "UNPLUGGED")


def temperature() -> float | None:
    """Return the temperature of the hottest processor sensor, degrees Celsius; None if there is none."""
    found = []
    for zone in SYS.glob("thermal/thermal_zone*"):
        if _read(zone / "type").startswith(CPU_SENSORS):
            try:
                found.append(float(_read(zone / "temp")) / 1000)
            except ValueError:  # a sensor that is switched off
                continue
    return max(found, default=None)


def is_metered() -> bool:
    """Tell whether the network costs by the byte, as far as the system knows."""
    try:
        rows = [line.split() for line in ROUTES.read_text().splitlines()[1:]]
    except OSError:  # Android hides it
        rows = []
    # By metric: a modem that is there should the other way out fail costs nothing.
    ways_out = [(int(row[6]), row[0]) for row in rows if len(row) > 6 and row[1] == "00000000"]
    if ways_out and min(ways_out)[1].startswith(MOBILE):
        return True
    said = _answer("busctl", "get-property", NETWORK_MANAGER, f"/{NETWORK_MANAGER.replace('.', '/')}",
                   NETWORK_MANAGER, "Metered")  # fmt: skip
    if said:
        return said.split() in (["u", "1"], ["u", "3"])  # NMMetered: yes, and guessed to be so
    wifi = _termux("termux-wifi-connectioninfo")
    # A phone that is not on Wi-Fi is on mobile data.
    return wifi is not None and wifi.get("supplicant_state") != "COMPLETED"


def _number(limits: Mapping[str, object], name: str, low: float, high: float) -> float | None:
    value = limits.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(
            f"{name} = {value!r} in the node's config: must be a number between {low:g} and {high:g}"
        )
    return value


def _read(path: Path) -> str:
    """Return the one line that such a file holds, "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _termux(command: str) -> dict[str, object] | None:
    """Return what Android says through Termux, None outside it."""
    try:
        said = json.loads(_answer(command))
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _answer(program: str, *arguments: str) -> str:
    """Return what a program prints, "" if it is missing, fails or does not answer."""
    found = shutil.which(program)
    if found is None:
        return ""
    try:
        done = subprocess.run(
            [found, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout
