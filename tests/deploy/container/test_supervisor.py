"""A container's supervisor starts its program again and leaves nothing of it behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from ...support.processes import linux, running, wait_for

ROOT = Path(__file__).parents[3]


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
print("here I am \\x1b[92mgreen\\x1b[0m \\x1b[2J\\u202e")
for _ in range(5000): print("noise", 100 * ".")
(Path(sys.argv[1]) / "said").touch()
time.sleep(300)
"""


def test_a_program_may_say_a_lot_while_it_is_made_ready_and_control_characters_are_escaped(tmp_path):
    code = dedent(SUPERVISE).format(folder=str(tmp_path), program=TALKATIVE, waits_for="said")
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        wait_for((tmp_path / "ready").exists, 240, lambda: "ready")
    finally:
        process.terminate()
        assert process.communicate(timeout=30)[0] == ("here I am \x1b[92mgreen\x1b[0m \\x1b[2J\\u202e\n")


@linux
def test_a_program_that_ends_is_started_again_and_nothing_of_it_stays(tmp_path):
    code = dedent(SUPERVISE).format(folder=str(tmp_path), program=PROGRAM, waits_for="")
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        wait_for((tmp_path / "ready").exists, 240, lambda: "ready")
        children = [int(pid) for pid in (tmp_path / "children").read_text().split()]
        assert [running(pid) for pid in children] == [False, False, True]
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert not (tmp_path / "ready").exists()
    wait_for(lambda: not any(map(running, children)), 10, lambda: "the children end")  # a kill takes a moment
    assert output.splitlines() == [
        *["cohort: the program did not become ready and ended with code 49; it is started again in 0.05 s"]
        * 2,
        "here I am",
    ]
