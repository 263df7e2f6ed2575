"""The roles of the containers, tested without Docker."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from deploy.container import DATA, DEVICES, client_names, devices, run
from deploy.container.leases import take
from deploy.container.settings import VARIABLES, planned
from deploy.container.setup import prepare, write_secret
from deploy.engines import superlink
from deploy.tls import certificates

from ...support.histories import write_history

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
NAMES = ["client-00", "client-01", "client-02"]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 240  # on a machine that has other things to do, starting Python takes its time
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_no_two_containers_are_the_same_client_and_a_restarted_one_keeps_its_name(tmp_path: Path) -> None:
    leases = {holder: take(tmp_path, NAMES, holder) for holder in "abc"}
    assert [lease and lease.name for lease in leases.values()] == NAMES
    assert take(tmp_path, NAMES, "d") is None

    for holder in "ab":
        lease = leases[holder]
        assert lease is not None
        lease.release()
    again = take(tmp_path, NAMES, "b")
    assert again is not None
    assert again.name == "client-01"
    instead = take(tmp_path, NAMES, "d")  # whose holder has ended
    assert instead is not None
    assert instead.name == "client-00"
    assert take(tmp_path, NAMES, "a") is None


def test_an_unused_name_is_preferred_to_that_of_a_container_that_may_come_back(tmp_path: Path) -> None:
    first = take(tmp_path, NAMES, "a")
    assert first is not None
    first.release()
    second = take(tmp_path, NAMES, "b")
    assert second is not None
    assert second.name == "client-01"


def test_concurrent_containers_are_different_clients_and_the_name_of_a_killed_one_is_free(
    tmp_path: Path,
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from deploy.container.leases import take; "
        f"lease = take(Path({str(tmp_path)!r}), {NAMES!r}, sys.argv[1]); "
        "print(lease and lease.name, flush=True); time.sleep(60)"
    )

    def start(holder: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, holder], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    with ThreadPoolExecutor() as pool:
        started = list(pool.map(start, "abcd"))
    try:
        assert sorted(name for _, name in started) == ["None", *NAMES]
        process, name = next(each for each in started if each[1] != "None")
        process.kill()
        process.wait()
        lease = take(tmp_path, NAMES, "e")
        assert lease is not None
        assert lease.name == name
    finally:
        for process, _ in started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_client_names_sort_by_number() -> None:
    assert client_names(3) == NAMES
    assert client_names(101) == sorted(client_names(101))


def test_the_environment_gives_the_settings_of_a_run(tmp_path: Path) -> None:
    environment = {
        "COHORT_CLIENTS": "4",
        "COHORT_ROUNDS": "7",
        "COHORT_PER_ROUND": "",  # as docker-compose.yml passes an unset variable
        "COHORT_SELECTOR": "uniform  osmd:alpha=0.3",
        "COHORT_SET": "round-deadline=9 local-steps=2",
    }
    trials = planned(tmp_path, environment)
    assert [trial.run_config["selector"] for trial in trials] == ["uniform", "osmd"]
    assert trials[1].run_config["selector-settings"] == "alpha=0.3"
    for trial in trials:
        assert trial.run_config["num-clients"] == 4
        assert trial.run_config["num-rounds"] == 7
        assert trial.run_config["round-deadline"] == 9
        assert trial.run_config["local-steps"] == 2
        assert trial.run_config["removed-clients"] == str(DEVICES / "revoked.json")
        assert "clients-per-round" not in trial.run_config
        assert trial.run_config["output-dir"] == str(tmp_path / trial.name)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"COHORT_ROUNDS": "0"}, "^COHORT_ROUNDS = 0: must be greater than or equal to 1$"),
        ({"COHORT_ROUNDS": "many"}, "^COHORT_ROUNDS = 'many': must be a valid integer$"),
        (
            {"COHORT_CLIENTS": "2"},
            r"^COHORT_PER_ROUND = 3: must be between 1 and 2 \(the number of clients\)$",
        ),
        ({"COHORT_SELECTOR": "best"}, "^COHORT_SELECTOR = 'best': must be one of .*uniform"),
        ({"COHORT_SELECTOR": "md md"}, "^COHORT_SELECTOR = 'md': given twice$"),
        ({"COHORT_TASK": "letters"}, "^COHORT_TASK = 'letters': must be one of digits, digits-mlp, "),
        ({"COHORT_SET": "quick"}, "^COHORT_SET = 'quick': must be of the form key=value$"),
        ({"COHORT_SET": "seed=3"}, "^COHORT_SET = seed=3: use COHORT_SEED for this setting$"),
        ({"COHORT_SET": "output-dir=x"}, "^COHORT_SET = output-dir=x: cannot be given here$"),
        ({"COHORT_SET": "learning-rate=-1"}, "^learning-rate = -1: must be greater than 0$"),
    ],
)
def test_a_wrong_setting_is_named_by_its_variable(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, environment)


def test_missing_data_are_named_by_the_variable_of_the_mounted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COHORT_DATA", str(DATA))  # as in the images
    with pytest.raises(ValueError, match=r"^COHORT_DATA: there is no such file or folder$"):
        planned(tmp_path, {"COHORT_TASK": "mnist"})


RUNNING = {"success": True, "runs": [{"status": "running"}]}
AWAY = {"success": False, "error-message": "Connection to the SuperLink is unavailable."}


@pytest.mark.parametrize(
    ("answers", "goes_on"),
    [
        ([AWAY, AWAY, RUNNING], True),  # the run survives a restart of the SuperLink
        ([AWAY, {"success": True, "runs": [{"status": "finished:failed"}]}], False),
        ([{"success": False, "error-message": "database is locked"}, RUNNING], True),
        ([{"success": False, "error-message": "Run ID not found."}], False),
    ],
)
def test_a_run_that_still_goes_on_is_not_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, object]], goes_on: bool
) -> None:
    submitted = {"success": True, "run-id": 18}
    left = iter([submitted, *answers, submitted])
    asked: list[str] = []

    def flwr(self: object, command: str, *_: str) -> dict[str, object]:
        asked.append(command)
        return next(left)

    monkeypatch.setattr(run._Cluster, "flwr", flwr)
    monkeypatch.setattr(run._Cluster, "open_log", lambda self, run_id: None)
    monkeypatch.setattr(superlink, "copy_app", lambda *_: None)
    monkeypatch.setattr(run, "RETRY", 0.0)
    cluster, config = run._Cluster(), {"output-dir": str(tmp_path / "md")}
    assert cluster.submit(config, "md").run_id == "18"  # the first submission
    (tmp_path / "md.run-id").write_text("17")
    assert cluster.submit(config, "md-2").run_id == ("17" if goes_on else "18")
    assert asked == ["run", *["list"] * len(answers), *([] if goes_on else ["run"])]
    assert (tmp_path / "md.run-id").read_text() == ("17" if goes_on else "18")


def test_devices_are_registered_and_revoked_under_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def flwr(*arguments: str, environment: object) -> dict[str, object]:
        asked.append(arguments)
        return {"success": True, "node-id": "7", "nodes": [{"node-id": "7", "status": "online"}]}

    def do(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["deploy.container", "devices", *arguments])
        code = devices.main()
        return code, "".join(capsys.readouterr())

    monkeypatch.setattr(devices, "STATE", tmp_path)
    monkeypatch.setattr(devices, "DEVICES", tmp_path / "devices")
    monkeypatch.setattr(devices, "flwr", flwr)
    (tmp_path / "registered").mkdir()
    (tmp_path / "registered" / "client-00").touch()
    certificates.write_client_key(tmp_path, "key")
    key = (tmp_path / "key.pub").read_text().split()
    assert do("register", "pi-1", *key) == (0, "pi-1 is registered (node 7); it comes online by itself\n")
    assert asked.pop()[:4] == ("supernode", "register", "--name", "pi-1")
    assert do("list")[1].split() == ["pi-1", "online"]
    assert do("register", "pi-1", *key)[1].startswith("name = pi-1: registered already")
    assert do("register", "client-00", *key) == (
        2,
        "name = client-00: belongs to a client inside the cluster\n",
    )
    assert do("revoke", "pi-1") == (0, "pi-1 is revoked\n")
    assert asked[-1] == ("supernode", "unregister", "7", "cluster")
    assert json.loads((tmp_path / "devices" / "revoked.json").read_text()) == ["pi-1"]
    for wrong in ((), ("register", "pi-1"), ("invite", "pi-1")):
        assert do(*wrong) == (2, f"{devices.USAGE}\n")


def test_an_unfinished_run_is_resumed_unless_the_settings_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(run, "planned", lambda folder: planned(folder, environment))
    environment = {"COHORT_CLIENTS": "4", "COHORT_ROUNDS": "3", "COHORT_SELECTOR": "uniform md"}
    folder, trials = run._last_or_new(tmp_path)
    write_history(folder / "uniform", [2.0] * 4)  # finished; md was killed before it started

    assert run._last_or_new(tmp_path)[0] == folder
    again = run._last_or_new(tmp_path)[1]
    assert [(trial.name, trial.done) for trial in again] == [("uniform", True), ("md", False)]
    assert "resumes " in capsys.readouterr().out

    environment["COHORT_SEED"] = "9"
    time.sleep(1.1)  # the name of the folder contains the second
    other, trials = run._last_or_new(tmp_path)
    assert other != folder
    assert "the settings have changed: this is a new run" in capsys.readouterr().out
    for trial in trials:
        write_history(other / trial.name, [2.0] * 4)
    time.sleep(1.1)
    assert run._last_or_new(tmp_path)[0] not in (folder, other)  # nothing to resume


def read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_certificates_and_keys_are_made_once_and_public_files_lie_apart(tmp_path: Path) -> None:
    public, server, keys = (tmp_path / each for each in ("public", "server", "keys"))
    public.mkdir()
    prepare(public, server, keys, ["superlink"], 2)
    before = read(server) | read(keys) | read(public)
    assert set(read(public)) == {"ca.crt", "client-00.pub", "client-01.pub"}
    assert not any(b"PRIVATE" in content for content in read(public).values())
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (server, keys)] == [0o700, 0o700]

    prepare(public, server, keys, ["superlink"], 3)  # more clients
    after = read(server) | read(keys) | read(public)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"client-02", "client-02.pub"}

    prepare(public, server, keys, ["superlink", "box.example.org"], 3)  # another name
    assert certificates.is_valid_for(
        server / "server.pem", ["superlink", "box.example.org"], certificates.RENEWAL
    )
    assert read(public)["ca.crt"] == before["ca.crt"]  # devices know it
    assert read(keys) == {name: after[name] for name in read(keys)}

    (server / "server.pem").unlink()  # setup was killed before it wrote it
    prepare(public, server, keys, ["superlink"], 3)
    assert certificates.is_valid_for(server / "server.pem", ["superlink"], certificates.RENEWAL)
    assert read(public)["ca.crt"] == read(server)["ca.crt"] != before["ca.crt"]


def test_a_certificate_is_valid_for_its_names_and_long_enough(tmp_path: Path) -> None:
    certificate = certificates.write_certificates(tmp_path, ["superlink"]).certificate
    assert certificates.is_valid_for(certificate, ["superlink", "localhost"], certificates.RENEWAL)
    assert not certificates.is_valid_for(certificate, ["superlink"], certificates.VALIDITY)
    assert not certificates.is_valid_for(certificate, ["other"], certificates.RENEWAL)


def test_the_executors_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    write_secret(tmp_path / "private" / "secret")
    secret = (tmp_path / "private" / "secret").read_bytes()
    write_secret(tmp_path / "private" / "secret")
    assert (tmp_path / "private" / "secret").read_bytes() == secret
    assert len(secret) == 32
    assert stat.S_IMODE((tmp_path / "private" / "secret").stat().st_mode) == 0o600


SUPERVISE = """
    import sys, time
    from pathlib import Path
    from deploy.container import supervisor

    folder = Path({folder!r})
    supervisor.PAUSE = supervisor.LONG_PAUSE = 0.05
    supervisor.READY = folder / "ready"
    program = [sys.executable, "-u", "-c", {program!r}, {folder!r}]

    def make_ready():
        while not (folder / {waits_for!r}).exists():
            time.sleep(0.05)

    sys.exit(supervisor.ContainerSupervisor(
        lambda: program, ready_line="here I am", on_ready=make_ready, hidden=lambda line: b"noise" in line
    ).supervise())
"""
# Leaves a child behind that keeps its output open; the third time it keeps running.
PROGRAM = """
import os, subprocess, sys, time
from pathlib import Path
starts = Path(sys.argv[1]) / "starts"
with starts.open("a") as file: file.write("x")
child = subprocess.Popen(["sleep", "300"])
with (Path(sys.argv[1]) / "children").open("a") as file: print(child.pid, file=file)
print("noise")
if len(starts.read_text()) < 3: sys.exit(305 % 256)
print("here I am")
time.sleep(300)
"""


TALKATIVE = """
import sys, time
from pathlib import Path
print("here I am")
for _ in range(5000): print("noise", 100 * ".")
(Path(sys.argv[1]) / "said").touch()
time.sleep(300)
"""


def test_a_program_may_say_a_lot_while_it_is_made_ready(tmp_path: Path) -> None:
    code = dedent(SUPERVISE).format(folder=str(tmp_path), program=TALKATIVE, waits_for="said")
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        wait_for((tmp_path / "ready").exists, "ready")
    finally:
        process.terminate()
        assert process.communicate(timeout=30)[0] == "here I am\n"


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_program_that_ends_is_started_again_and_nothing_of_it_stays(tmp_path: Path) -> None:
    code = dedent(SUPERVISE).format(folder=str(tmp_path), program=PROGRAM, waits_for="")
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        wait_for((tmp_path / "ready").exists, "ready")
        children = [int(pid) for pid in (tmp_path / "children").read_text().split()]
        assert [is_running(pid) for pid in children] == [False, False, True]
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert not (tmp_path / "ready").exists()
    assert not any(map(is_running, children))
    assert output.splitlines() == [
        *["cohort: it did not become ready and ended with code 49; it is started again in 0.05 s"] * 2,
        "here I am",
    ]
