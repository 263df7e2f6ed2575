"""The role `page` shows the runs on the volume, without the network of the clients."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx

from deploy.page.secret_link import address
from deploy.processes.ports import free_ports
from tests.deploy.page.test_http_interface import write
from tests.deploy.page.test_run_sources import lines_of

ROOT = Path(__file__).parents[3]
ROLE = """
import sys; from pathlib import Path; from deploy.container import page as c
c.PORT, c.READY = {port}, Path({ready!r}); sys.exit(c.main())
"""


def test_it_serves_the_runs_on_the_volume_at_the_same_address_after_a_restart(tmp_path):
    (port,) = free_ports(1)
    (tmp_path / "page").mkdir()
    write(tmp_path / "results" / "2026-01-01" / "md", lines_of([{0: (1, True)}]))
    (tmp_path / "results" / "2026-01-01" / "run.json").write_text("{}")
    secrets = []
    for _ in range(2):
        code = ROLE.format(port=port, ready=str(tmp_path / "ready"))
        with subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "COHORT_VOLUMES": str(tmp_path), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        ) as role:
            assert role.stdout is not None
            said = "".join(role.stdout.readline() for _ in range(3))
            found = re.search(r"SECRET:  docker compose exec page cat (\S+)\n", said)
            assert found
            secrets.append(Path(found[1]).read_text())
            assert secrets[-1] not in said
            state = httpx.get(f"{address(port, secrets[-1])}data/state", timeout=20).json()
            assert (state["run"], state["trials"]["md"]["round"]) == ("2026-01-01", 1)
            assert (tmp_path / "ready").exists()
            role.terminate()
            assert role.wait(20) in (0, -15)
    assert secrets[0] == secrets[1] == (tmp_path / "page" / "secret").read_text()
    assert (tmp_path / "page" / "secret").stat().st_mode & 0o077 == 0
