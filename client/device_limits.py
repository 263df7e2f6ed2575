"""Decides whether this device trains now: not if it is paused, low on power, hot or on a metered network.

A condition is checked only if the node's config sets a limit for it. So a client without limits, such as a
simulated client, never looks for a battery. If the system does not report a value, such as a temperature, the
device counts as within the limit for this value.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SYS = Path("/sys/class")
ROUTES = Path("/proc/net/route")
# The types of processor sensors begin with one of these. Phones have dozens of other sensors, some of which
# report wrong values.
CPU_SENSORS = ("cpu", "soc", "x86_pkg", "k10temp")
MOBILE = ("wwan", "ppp", "rmnet")  # names of modem interfaces
NETWORK_MANAGER = "org.freedesktop.NetworkManager"
ANSWER_TIMEOUT = 5.0  # s; Termux's commands hang if the Termux:API app is missing


class Power(NamedTuple):
    """The state of a battery."""

    percent: float  # from 0 to 100
    charging: bool  # True also for a full battery that is connected to power


def why_unavailable(limits: Mapping[str, object]) -> str | None:
    """Return the reason why this device should not train now; None if it may train.

    Parameters
    ----------
    limits : Mapping[str, object]
        The node's config. These keys set limits; a limit whose key is missing is not checked:
        ``pause-file`` (a path; no training while the file exists),
        ``min-battery`` (%, in [0, 100]; no training below it unless charging),
        ``max-temperature`` (°C of the processor, in [0, 150]; no training above it) and
        ``allow-metered`` (false: no training on a metered network).

    Raises
    ------
    ValueError
        If the value of one of these keys has the wrong type or is out of range.
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


def charge(limits: Mapping[str, object]) -> float | None:
    """Return the charge of this device's battery, %; None without a ``min-battery``, or without a battery."""
    if limits.get("min-battery") is None:
        return None
    power = battery()
    return None if power is None or not 0 <= power.percent <= 100 else power.percent


def properties_of(limits: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the properties that this client reports; None if there are none.

    Parameters
    ----------
    limits : Mapping[str, object]
        The node's config. ``properties`` is text such as "region=eu,site=3,tags=a|b". If ``min-battery`` is
        given and there is a battery, ``charging`` is reported, too.

    Raises
    ------
    ValueError
        If ``properties`` is not of this form.
    """
    found: dict[str, Any] = {}
    if "min-battery" in limits and (power := battery()):
        found["charging"] = power.charging
    text = str(limits.get("properties", ""))
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not (name and value):
            raise ValueError(f"properties = {text!r} in the node's config: {part!r} must be NAME=VALUE")
        if name == "tags":
            found[name] = value.split("|")
        else:
            try:
                found[name] = json.loads(value)
            except (ValueError, RecursionError):
                found[name] = value
    return found or None


def battery() -> Power | None:
    """Return the state of the fullest battery that powers this device; None if none is found."""
    found = []
    on_mains = False
    for supply in sorted(SYS.glob("power_supply/*")):
        kind = _read(supply / "type")
        # A battery with the scope "Device" powers something else, such as a mouse.
        if kind == "Battery" and _read(supply / "scope") != "Device":
            try:
                charge = float(_read(supply / "capacity"))
            except ValueError:  # Android hides the charge
                continue
            found.append(Power(charge, _read(supply / "status") in ("Charging", "Full", "Not charging")))
        elif kind in ("Mains", "USB"):
            on_mains |= _read(supply / "online") == "1"
    if found:
        best = max(found)  # the fullest
        return best._replace(charging=best.charging or on_mains)
    status = _termux("termux-battery-status") or {}
    left = status.get("percentage")
    if not isinstance(left, int | float):
        return None
    return Power(float(left), status.get("plugged", "UNPLUGGED") != "UNPLUGGED")


def temperature() -> float | None:
    """Return the temperature of the hottest processor sensor, degrees Celsius; None if there is none."""
    found = []
    for zone in SYS.glob("thermal/thermal_zone*"):
        if _read(zone / "type").startswith(CPU_SENSORS):
            try:
                found.append(float(_read(zone / "temp")) / 1000)
            except ValueError:  # the sensor is switched off
                continue
    return max(found, default=None)


def is_metered() -> bool:
    """Return whether the network is metered, as far as the system knows."""
    try:
        rows = [line.split() for line in ROUTES.read_text().splitlines()[1:]]
    except OSError:  # Android hides the routes
        rows = []
    # The default route with the smallest metric is in use. A modem with a larger metric is only a fallback.
    routes = [(int(row[6]), row[0]) for row in rows if len(row) > 6 and row[1] == "00000000"]
    if routes and min(routes)[1].startswith(MOBILE):
        return True
    answer = _answer("busctl", "get-property", NETWORK_MANAGER, f"/{NETWORK_MANAGER.replace('.', '/')}",
                   NETWORK_MANAGER, "Metered")  # fmt: skip
    if answer:
        return answer.split() in (["u", "1"], ["u", "3"])  # NMMetered: yes, or guessed yes
    wifi = _termux("termux-wifi-connectioninfo")
    # A phone without Wi-Fi is on mobile data.
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
    """Return the content of a one-line system file, "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _termux(command: str) -> dict[str, object] | None:
    """Return the answer of a Termux command, None outside Termux."""
    try:
        answer = json.loads(_answer(command))
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _answer(program: str, *arguments: str) -> str:
    """Return the output of a program, "" if it is missing, fails or does not answer in time."""
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
