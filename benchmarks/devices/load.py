"""The program of the load generator: many simulated devices in one process, which come and go.

``python -m benchmarks.devices.load SETTINGS`` reads a JSON file (`Settings`), and runs the devices until
SIGTERM. Every second, it writes the file that `Settings.counts` names.
"""

import asyncio
import contextlib
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from benchmarks.devices.device import Device, Load
from deploy.processes.file_limit import raise_file_limit

AT_ONCE = 32  # at most this many devices connect at a time, since the gate limits the bytes of strangers


@dataclass(frozen=True)
class Settings:
    """The settings of a load generator."""

    addresses: list[str]  # HOST:PORT of each front end's Fleet API, among which the devices are divided
    authority: str  # file of the certificate of the authority that signed the server's certificate
    # The files of the devices' private keys. The name of a device is the name of its key's file.
    keys: list[str]
    delay: float  # seconds between the arrival of a message and its reply, >= 0
    leaves: float  # how many devices leave in a minute, >= 0
    away: float  # seconds until a device that left comes back, >= 0
    counts: str  # file that gets `Load.counts` and, as "online", the number of devices that are online


async def run(settings: Settings) -> None:
    """Run the devices until SIGTERM."""
    load = Load(Path(settings.authority).read_bytes(), settings.delay, AT_ONCE)
    devices = []
    for number, file in enumerate(settings.keys):
        key = load_ssh_private_key(Path(file).read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        address = settings.addresses[number % len(settings.addresses)]
        devices.append(Device(Path(file).name, number, key, load, address))
    counts = Path(settings.counts)

    def report() -> None:
        new = counts.with_suffix(".new")
        new.write_text(json.dumps({**load.counts, "online": len(load.online)}))
        new.rename(counts)

    work = asyncio.create_task(come_and_go(devices, settings.leaves, settings.away, 0, load))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    while not work.done():
        report()
        await asyncio.wait([work], timeout=1.0)
    with contextlib.suppress(asyncio.CancelledError):
        await work
    report()


async def come_and_go(devices: list[Device], leaves: float, away: float, seed: int, load: Load) -> None:
    """Run devices until this task is cancelled; `leaves` of them leave in a minute, for `away` seconds.

    `load.counts` gets "left", how many times one left at random and without a sign, and "died", how many
    times one failed; such a device comes back, too.
    """
    random = np.random.default_rng(seed)

    async def keep(device: Device) -> None:
        while True:
            try:
                await device.live()
            except Exception as error:
                load.counts["died"] += 1
                print(f"{device.name}: {type(error).__name__}: {error}", flush=True)
            await asyncio.sleep(away)

    living = [asyncio.create_task(keep(each)) for each in devices]
    try:
        while True:
            if not leaves:
                await asyncio.sleep(60.0)
                continue
            await asyncio.sleep(random.exponential(60.0 / leaves))
            number = int(random.integers(len(devices)))
            living[number].cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await living[number]
            load.counts["left"] += 1

            async def back(device: Device) -> None:
                await asyncio.sleep(away)
                await keep(device)

            living[number] = asyncio.create_task(back(devices[number]))
    finally:
        for task in living:
            task.cancel()
        await asyncio.gather(*living, return_exceptions=True)


if __name__ == "__main__":
    raise_file_limit()
    asyncio.run(run(Settings(**json.loads(Path(sys.argv[1]).read_text()))))
