"""Devices of the nemesis without processes of their own: many in one, which train as its ClientApp does.

``python -m tests.nemesis.light_devices SETTINGS``: `load.Settings` as JSON, with the trainings' folder. A
device's key has the device's name, CLIENT-NN. Unlike `cohort client join`, a device is at one address, which
may stand for several front ends.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import grpc
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_type_from_object_content
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from benchmarks.devices import load
from benchmarks.devices.device import Device
from deploy.processes.file_limit import raise_file_limit
from strategies.clients.reports import Report
from strategies.flower.messages import write_report

from .client_app import born, note
from .updates import fingerprint, num_examples, trained


class LightDevice(Device):
    """Trains with `updates.trained`, and logs each training."""

    trainings: Path

    async def _ask(self, method, *arguments, **options):
        """Send a request; give up a message whose run is over, and come online anew."""

        async def once(*given, **named):
            try:
                return await method(*given, **named)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                    raise RuntimeError("the run is over") from error
                raise

        return await super()._ask(once, *arguments, **options)

    def _content(self, kind, contents):
        client = int(self.name.rpartition("-")[2])
        size = num_examples(client)
        if not kind.startswith("train"):
            return write_report(Report(client_id=self.name, num_examples=size, available=True))
        record = next(
            inflate_object_from_contents(name, contents, keep_object_contents=True)
            for name, each in contents.items()
            if get_object_type_from_object_content(each) == "RecordDict"
        )
        number = int(record["config"]["server-round"])
        model = {name: array.numpy() for name, array in record["arrays"].items()}
        self.trainings.mkdir(exist_ok=True)
        if number == 1:
            np.savez(self.trainings / f"first-model-{client}.npz", **model)
        about = {"client": client, "round": number, "pid": os.getpid(), "born": born(os.getpid())}
        note(self.trainings, client, {"event": "begin", **about, "model": fingerprint(model)})
        arrays = {name: Array(array) for name, array in trained(client, number, model).items()}
        note(self.trainings, client, {"event": "end", **about})
        metrics = MetricRecord({"num-examples": size, "train-loss": 1 / number})
        return RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    LightDevice.trainings = Path(settings.pop("trainings"))
    load.Device = LightDevice
    raise_file_limit()
    asyncio.run(load.run(load.Settings(**settings)))
