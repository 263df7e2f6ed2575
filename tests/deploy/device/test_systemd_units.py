"""The unit with which systemd keeps a device running."""

from dataclasses import replace
from pathlib import Path

import pytest

from deploy.device.cli import unit_of as unit
from deploy.processes.systemd_units import verify


def test_the_unit_has_the_limits_and_restarts(device):
    settings = replace(device.settings(), nice=5, threads=2, memory_limit=300)
    text = unit(settings, Path("/var/lib/cohort client%"), system=True)
    lines = text.splitlines()
    for line in ("Restart=always", "Nice=5", "CPUQuota=200%", "MemoryMax=300M", "DynamicUser=yes"):
        assert line in lines
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    assert start.endswith('client join --state-dir "/var/lib/cohort client%%"')
    assert "MemoryMax" not in unit(device.settings(), device.folder, system=False)
    with pytest.raises(ValueError, match="directly in /var/lib for a system unit"):
        unit(settings, device.folder, system=True)


@pytest.mark.skipif(not Path("/usr/bin/systemd-analyze").exists(), reason="no systemd here")
@pytest.mark.parametrize("system", [True, False])
def test_systemd_accepts_the_unit(device, tmp_path, system):
    path = tmp_path / "cohort-client.service"
    path.write_text(unit(replace(device.settings(), memory_limit=300), Path("/var/lib/c"), system=system))
    assert verify(path, system=system) == ""
    path.write_text(path.read_text().replace("Restart=always", "Restart=sometimes"))
    assert "sometimes" in verify(path, system=system)  # the unit was verified
