"""A server gets a second front end, is backed up, restored and moved, by the commands of the guides."""

import json
import os
import re
import shutil
import subprocess
from contextlib import suppress

import numpy as np
import pytest

from deploy.hosting.listing import RUN_ID
from deploy.hosting.server import Server
from deploy.processes.ports import free_ports
from deploy.tls.certificates import write_certificates

from ..support.devices import COHORT, Running, cohort
from ..support.guides import blocks
from ..support.postgres import Postgres
from ..support.processes import linux, wait_for
from .test_front_ends import FrontEnd, Run, copied_keys

pytestmark = [pytest.mark.network, pytest.mark.slow, linux]

DEVICES = 2
LATE = 180.0  # s that starting programs and a few rounds may take on a busy machine
PLACEHOLDER = "postgresql://cohort@db.example.org/cohort?..."


class Operator:
    """Runs lines of the guides in a folder, with other words in the place of some.

    What goes on beside the lines that follow: servers, runs, devices. A new server gets free ports.
    `server`: its folder, if the lines do not name it.
    """

    def __init__(self, folder, started, words, environment=(), server=None):
        self._folder, self._started, self._words, self._server = folder, started, words, server
        environment = {"PATH": os.environ["PATH"], **dict(environment)}
        self._environment = {**environment, "PATH": f"{COHORT.parent}:{environment['PATH']}"}
        self._count = 0

    def runs(self, lines, given=""):
        """Run the lines. Return what they print, those that go on as `Running`. `given`: at the prompts."""
        return [self._run(line, given) for line in lines]

    def _run(self, line, given):
        for word, other in self._words.items():
            line = line.replace(word, str(other))
        if line.startswith("cohort server ") and "--dir " not in line:
            line += f" --dir {self._server}"
        if not re.match(r"cohort (server (up|run)|client join)\b", line):
            options = {"cwd": self._folder, "env": {**os.environ, **self._environment}, "timeout": LATE}
            options |= {"input": given, "capture_output": True, "text": True, "start_new_session": True}
            done = subprocess.run(["bash", "-c", line], check=False, **options)
            # As the guide says: files may change or go during the copy.
            moved = line.startswith("tar ") and re.search("changed as we|removed before we", done.stderr)
            assert done.returncode == bool(moved), f"{line}\n{done.stdout}\n{done.stderr}"
            return done.stdout
        if "--host" in line:
            port, control = free_ports(2)
            line += f" --listen 127.0.0.1 --port {port} --control-port {control}"
        self._count += 1
        log = self._folder / f"line-{self._count}.log"
        running = Running(
            log, "-c", f"cd {self._folder}; exec {line}", program=("bash",), environment=self._environment
        )
        self._started.append(running)
        if "server run" not in line:
            running.wait_for("up at localhost:" if "server up" in line else "online as ", LATE)
        return running


def join(tmp_path, name, invitation, number):
    words = ("client", "join", "--state-dir", str(tmp_path / name), "--invitation", str(invitation))
    return Running(tmp_path / f"{name}.log", *words, "--partition", f"{number}/{DEVICES + 1}")


def invited(server, name):
    invitation = server.parent / f"{name}.invitation"
    Server.load(server).invite(name, invitation, 1.0, "")
    return invitation


def nodes(server):
    """Return the node id of each client, and the clients that are online."""
    clients = json.loads(cohort("server", "list", "--json", folder=server))["clients"]
    return {each["name"]: each["node_id"] for each in clients}, {
        each["name"] for each in clients if each["state"] == "online"
    }


def everybody_online(server, names):
    with suppress(AssertionError):  # the server does not answer yet
        return nodes(server)[1] == set(names)


def judge(run, last):
    """Check that the history has each round once, with all replies, up to a round."""
    done = run.rounds()[1:]
    assert [line["round"] for line in done] == list(range(1, len(done) + 1))
    assert len(done) >= last
    # A later one may have been sending its messages when the run was stopped.
    found = [(line["skipped"], line["responded"], line["failures"]) for line in done[:last]]
    assert found == [("", [True] * DEVICES, [])] * last


def joined(servers, tmp_path, started):
    """Let each device join at one of the servers. Return their names."""
    names = [f"d{number}" for number in range(DEVICES)]
    for number, name in enumerate(names):
        started.append(join(tmp_path, name, invited(servers[number % len(servers)], name), number))
    for device in started[-DEVICES:]:
        device.wait_for("online as d")
    return names


def begun(tmp_path, started, front):
    """Start a run, and return it when it is in its fourth round."""
    run = Run(tmp_path, front, DEVICES)
    started.append(run)
    run.wait_for_round(3, LATE)
    return run


def in_backup(archive, pattern, folder):
    """Return the last round in a backup."""
    folder.mkdir()
    subprocess.run(["tar", "xzf", archive, "-C", folder], check=True)
    return json.loads(next(folder.glob(pattern)).read_text().splitlines()[-1])["round"]


def test_a_server_comes_back_from_a_backup_and_moves_to_postgresql(tmp_path, postgres, started):
    folder = tmp_path / "one"
    sqlite = FrontEnd(folder, "off")
    started.append(sqlite)
    names = joined([folder], tmp_path, started)
    unused = invited(folder, "late")
    run = begun(tmp_path, started, sqlite)
    backup, _ = blocks("upgrading.md", "Back up a server")
    restore, _ = blocks("upgrading.md", "Restore a server")
    operator = Operator(tmp_path, started, {"DIR": folder})
    operator.runs(backup)
    saved = in_backup(tmp_path / "backup.tgz", "runs/*/history.jsonl", tmp_path / "looked-at")
    run.process.kill()
    sqlite.kill()
    shutil.rmtree(folder)
    *_, up, listed, _ = operator.runs(restore)
    assert all(name in listed for name in names)
    run.wait_for_round(saved + 3, LATE)
    judge(run, saved + 2)

    before, _ = nodes(folder)
    flower_run = next(folder.glob(f"runs/*/{RUN_ID}")).read_text()
    refused = Running(
        tmp_path / "refused.log", "server", "move", "--dir", str(folder), "--database", postgres.url("none")
    )
    assert refused.process.wait(60) == 2
    assert "is running already" in refused.said
    database = postgres.database(empty=True)
    (move,) = blocks("scale.md", "From SQLite to PostgreSQL")
    operator = Operator(tmp_path, started, {PLACEHOLDER: database}, server=folder)
    operator.runs(move[:1])
    done = len(run.rounds()) - 1
    up.end()
    said, one = operator.runs(move[1:3])
    assert "rows are in postgresql://" in said
    wait_for(lambda: everybody_online(folder, names), LATE, lambda: one.said)
    assert nodes(folder)[0] == before
    assert [(int(flower_run) + 2**63) % 2**64 - 2**63] in [
        list(row) for row in postgres.execute("SELECT run_id FROM run", database)
    ]
    two = FrontEnd(copied_keys(folder, tmp_path / "two"), database)
    started.append(two)
    invitation = json.loads(unused.read_text())
    unused.write_text(json.dumps({**invitation, "server": Server.load(two.folder).address}))
    started.append(join(tmp_path, "late", unused, DEVICES))  # at a front end that did not make it
    started[-1].wait_for("online as late")
    operator.runs(move[3:])
    run.wait_for_round(done + 3, LATE)
    rounds = run.rounds()
    assert [line["round"] for line in rounds] == list(range(len(rounds)))
    assert all(all(line["responded"]) and not line["skipped"] for line in rounds[done + 2 : done + 4])


class WithTls(Postgres):
    """A PostgreSQL that is reached over TCP and TLS, as `localhost`."""

    def __init__(self, folder):
        self.files = write_certificates(folder)
        settings = {"ssl": "on", "ssl_cert_file": "server.crt", "ssl_key_file": "server.key"}
        super().__init__(settings, tcp=True)

    def start(self):
        """Start the server with its key, which nobody else may read."""
        owner = self.data.stat()
        for source, name in ((self.files.certificate, "server.crt"), (self.files.key, "server.key")):
            shutil.copy(source, self.data / name)
            (self.data / name).chmod(0o600)
            os.chown(self.data / name, owner.st_uid, owner.st_gid)
        super().start()


def test_two_front_ends_and_a_run_in_flight_come_back_from_a_dump_and_a_backup(tmp_path, started):
    with WithTls(tmp_path / "tls") as postgres:
        first, second, runs = tmp_path / "one", tmp_path / "two", tmp_path / "runs"
        port, authority = postgres.environment["PGPORT"], postgres.files.ca
        runs.mkdir(mode=0o700)
        url = f"postgresql://fleet@localhost:{port}/NAME?sslmode=verify-full&sslrootcert={authority}"
        url += f"&passfile={tmp_path}/db.pass"
        words = {
            PLACEHOLDER: url.replace("NAME", "cohort"),
            "cohort@db.example.org/": f"fleet@localhost:{port}/",
            "db.example.org:5432:cohort:cohort:PASSWORD": f"localhost:{port}:*:fleet:a password",
            "/etc/cohort/db-ca.crt": authority,
            "/etc/cohort/": f"{tmp_path}/",
            "pwprompt cohort": "pwprompt fleet",  # the administrator of this PostgreSQL is `cohort`
            "owner cohort": "owner fleet",
            "/mnt/cohort/runs": runs,
            "scp -rp one.example.org:.local/state/cohort-server": f"cp -rp {first}",
            "~/.local/state/cohort-server": second,
            "one.example.org": f"localhost --dir {first}",
            "two.example.org": f"localhost --dir {second}",
            "NEW-URL": url.replace("NAME", "cohort2"),
            "'URL'": f"'{url.replace('NAME', 'cohort')}'",
            "DIR": first,
            "RUNS": runs,
        }
        operator = Operator(tmp_path, started, words, postgres.environment)
        several, another = blocks("scale.md", "Several machines as one server")[:2]
        *_, one = operator.runs(several[1:], "a password\na password\n")  # not `pip install`
        one.folder = first
        *_, two = operator.runs(another)
        names = joined([first, second], tmp_path, started)
        wait_for(lambda: everybody_online(first, names), LATE, lambda: one.said)
        run = begun(tmp_path, started, one)

        _, backup = blocks("upgrading.md", "Back up a server")
        operator.runs(backup)
        saved = in_backup(tmp_path / "runs.tgz", "*/history.jsonl", tmp_path / "looked-at")
        run.wait_for_round(len(run.rounds()) + 2, LATE)
        run.process.kill()
        two.end()
        FrontEnd.kill(one)
        shutil.rmtree(first)
        shutil.rmtree(runs)
        _, restore = blocks("upgrading.md", "Restore a server")
        *_, again = operator.runs(restore)
        wait_for(lambda: everybody_online(first, names), LATE, lambda: again.said)
        again.wait_for("it is carried on here", LATE)
        run.wait_for_round(saved + 3, LATE)
        cohort("server", "stop", "last", folder=first)
        judge(run, saved + 2)
        assert any('"resume"' in line for line in next(runs.glob("*/history.jsonl")).read_text().splitlines())


def test_the_commands_of_the_other_guides_at_one_server(tmp_path, started):
    """Runs with two rounds, of three devices; the first device has the options of the guides."""
    folder, (port,) = tmp_path / "server", free_ports(1)
    words = {"fl.example.org": "localhost", "9464": port}
    operator = Operator(tmp_path, started, words, server=folder)
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "samples.npz", inputs=rng.random((100, 64)), labels=rng.integers(0, 10, 100))

    def trains(line):
        for name, value in {"num-clients": 3, "clients-per-round": 3, "num-rounds": 2}.items():
            line += "" if f"{name}=" in line else f" --set {name}={value}"
        (run,) = operator.runs([line])
        assert run.process.wait(LATE) == 0, run.said

    up, invite, join_first, run = (re.sub(r"^\w+\$ ", "", line) for line in blocks("devices.md")[1])
    server, *_ = operator.runs([up])
    devices = {}
    for name in ("pi-1", "pi-2", "pi-3"):
        here = [line.replace("pi-1", name) for line in (invite, f"{join_first} --dir {tmp_path}/pi-1")]
        _, devices[name] = operator.runs(here)
    trains(run)
    devices["pi-1"].end()
    (again,) = blocks("privacy.md")[0]
    operator.runs([f"{again} --dir {tmp_path}/pi-1"])
    pages = [line for name in ("security.md", "trouble.md") for block in blocks(name) for line in block]
    runs = [line for line in pages if line.startswith("cohort server run")]
    assert len(runs) == 3
    for line in runs:
        trains(line)
    server.end()
    *_, metrics = operator.runs(blocks("metrics.md")[0])
    assert "cohort_superlink_up 1" in metrics


def test_the_blocks_of_these_guides_are_these():
    """Every `cohort server` block of the two pages is run here."""
    for page, sections in (
        ("upgrading.md", ("Back up a server", "Restore a server")),
        ("scale.md", ("Several machines as one server", "From SQLite to PostgreSQL")),
    ):
        here = [block for section in sections for block in blocks(page, section)]
        theirs = [each for each in blocks(page) if any(line.startswith("cohort server") for line in each)]
        assert len(theirs) >= 2
        assert [each for each in theirs if each not in here] == [], page
