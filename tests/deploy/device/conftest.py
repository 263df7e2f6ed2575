"""An authority, and a device that has been introduced to its server."""

import pytest

from deploy.device.device_folder import Device
from deploy.tls import certificates


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return certificates.write_certificates(tmp_path_factory.mktemp("pki"), ["fl.example.org"])


@pytest.fixture
def device(tmp_path, authority):
    device = Device(tmp_path / "state")
    device.prepare(device.introduce("pi-1", "fl.example.org:9092", authority.ca))
    return device
