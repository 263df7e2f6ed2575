"""docs/devices.md begins with a block that runs as it stands."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from deploy.processes.ports import free_ports

from ...support.devices import COHORT, Running
from ...support.processes import linux

GUIDE = Path(__file__).parents[3] / "docs" / "devices.md"


@linux
@pytest.mark.slow
@pytest.mark.network
def test_a_server_and_two_devices_train_as_the_guide_says(tmp_path, monkeypatch):
    """Line by line; what ends with "&" goes on beside the others. `make`, `sleep`, `kill` do not run."""
    monkeypatch.chdir(tmp_path)
    port, control = free_ports(2)
    ports = {"up": ["--port", str(port), "--control-port", str(control), "--listen", "127.0.0.1"]}
    block = re.search(r"```\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    lines = [
        words for line in block.splitlines() if (words := shlex.split(line, comments=True))[0] == "cohort"
    ]
    outputs, started = {}, []
    try:
        for number, (_, *words) in enumerate(lines):
            if words[-1] == "&":
                arguments = [*words[:-1], *ports.get(words[1], [])]
                started.append(Running(tmp_path / f"{number}.log", *arguments))
                started[-1].wait_for("up at localhost:" if words[0] == "server" else "online as pi-")
            else:
                done = subprocess.run(
                    [COHORT, *words], capture_output=True, text=True, timeout=300, check=True
                )
                outputs[" ".join(words[:2])] = done.stdout
    finally:
        for each in reversed(started):
            each.end()
    assert len(started) == 3
    assert "Finished after round 20 of 20" in outputs["server run"]
    assert "2 registered, 2 online" in outputs["server list"]
    assert re.search(r"^trained: \d+ times, last at 20", outputs["client status"], re.MULTILINE)
