"""A server's state moves: from SQLite into PostgreSQL, and from a dump during a run into a new database."""

import json
import shutil
from contextlib import suppress

import pytest

from deploy.hosting.listing import RUN_ID
from deploy.hosting.server import Server

from ..support.devices import Running, cohort
from ..support.processes import linux, wait_for
from .test_front_ends import FrontEnd, Run, copied_keys

pytestmark = [pytest.mark.network, pytest.mark.slow, linux]

DEVICES = 2
LATE = 180.0  # s that starting programs and a few rounds may take on a busy machine


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
    assert not any(line["skipped"] for line in done)
    assert all(len(line["clients"]) == DEVICES and all(line["responded"]) for line in done[:last]), done


def interrupted(server, tmp_path, started, front):
    """Start a run with two devices, and return it when it is in its fourth round."""
    names = [f"d{number}" for number in range(DEVICES)]
    for number, name in enumerate(names):
        started.append(join(tmp_path, name, invited(server, name), number))
    for device in started[-DEVICES:]:
        device.wait_for("online as d")
    run = Run(tmp_path, front, DEVICES)
    started.append(run)
    run.wait_for_round(3, 180)
    return names, run


def test_devices_and_runs_go_on_after_the_move_to_postgresql(tmp_path, postgres, started):
    folder = tmp_path / "one"
    sqlite = FrontEnd(folder, "off")
    started.append(sqlite)
    names, run = interrupted(folder, tmp_path, started, sqlite)
    unused = invited(folder, "late")
    before, _ = nodes(folder)
    flower_run = next(folder.glob(f"runs/*/{RUN_ID}")).read_text()
    run.process.kill()
    refused = Running(
        tmp_path / "refused.log", "server", "move", "--dir", str(folder), "--database", postgres.url("none")
    )
    assert refused.process.wait(60) == 2
    assert "is running already" in refused.said
    sqlite.end()

    database = postgres.database(empty=True)
    assert "rows are in postgresql://" in cohort("server", "move", "--database", database, folder=folder)
    one = FrontEnd(folder)
    started.append(one)
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

    done = len(run.rounds())
    resumed = Running(tmp_path / "resumed.log", "server", "run", "--resume", "last", "--dir", str(folder))
    started.append(resumed)
    run.wait_for_round(done + 2, LATE)
    cohort("server", "stop", "last", folder=folder)
    judge(run, done + 1)


def test_a_run_in_flight_goes_on_from_a_dump_and_a_copy_of_the_folder(tmp_path, postgres, started):
    folder, database = tmp_path / "one", postgres.database(empty=True)
    one = FrontEnd(folder, database)
    started.append(one)
    names, run = interrupted(folder, tmp_path, started, one)

    # docs/upgrading.md: the dump first, then the folder
    dump = postgres.folder / "cohort.dump"
    postgres.run("pg_dump", "--format=custom", f"--file={dump}", database)
    copy = tmp_path / "copy"
    left_out = shutil.ignore_patterns("tmp", "programs", "logs")
    shutil.copytree(folder, copy, ignore=left_out)
    in_backup = json.loads(next(copy.glob("runs/*/history.jsonl")).read_text().splitlines()[-1])
    run.wait_for_round(len(run.rounds()) + 2, LATE)
    run.process.kill()
    one.kill()
    shutil.rmtree(folder)

    restored = postgres.database(empty=True)
    postgres.run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={restored}", str(dump))
    shutil.move(copy, folder)
    again = Running(tmp_path / "again.log", "server", "up", "--dir", str(folder), "--database", restored)
    started.append(again)
    again.wait_for("up at localhost:")
    wait_for(lambda: everybody_online(folder, names), LATE, lambda: again.said)
    again.wait_for("it is carried on here", LATE)
    run.wait_for_round(in_backup["round"] + 3, LATE)
    cohort("server", "stop", "last", folder=folder)
    judge(run, in_backup["round"] + 3)
    assert any(
        '"resume"' in line for line in next(folder.glob("runs/*/history.jsonl")).read_text().splitlines()
    )
