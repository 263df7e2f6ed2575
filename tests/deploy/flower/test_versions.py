"""The list of Flower's private names is complete, only becomes shorter, and tells what has changed."""

import re
import subprocess
import sys
import textwrap
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from deploy.flower import versions
from deploy.flower.versions import TRIED, TRYING, __main__, names

ROOT = Path(versions.__file__).parents[3]
# How much depends on Flower's private names at present. Lower these numbers when it falls; never raise them.
MOST_NAMES, MOST_PATCH_LINES = 110, 1_890


def test_the_recorded_names_are_those_in_use_and_the_installed_flower_has_them():
    """If this fails after a change to the names in use, run `python -m deploy.flower.versions --write`."""
    assert names.imported().keys() <= names.files().keys()
    assert not [(name, path) for name, path in names.files().items() if not names.is_mentioned(name, path)]
    command = [sys.executable, "-m", "deploy.flower.versions", "--names"]  # in a process without patches
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (
        f"Flower {version('flwr')} and the {len(names.recorded())} private names of {TRIED[-1]}" in run.stdout
    )
    assert "0 are gone" in run.stdout
    if version("flwr") == TRIED[-1]:
        assert "0 have changed" in run.stdout, run.stdout


def test_private_names_and_lines_of_patches_become_fewer():
    private = [name for name in names.recorded() if not name.startswith(names.PROTOCOL)]
    patches = (ROOT / "deploy" / "flower" / "patches").rglob("*.py")
    assert len(private) <= MOST_NAMES
    assert sum(len(path.read_text().splitlines()) for path in patches) <= MOST_PATCH_LINES


def test_each_module_of_flower_that_the_code_names_is_in_the_list():
    listed = {name.partition(":")[0] for name in names.recorded()}
    for path in (ROOT / "deploy").rglob("*.py"):
        for name in re.findall(r'"(flwr\.[a-z_.]+)"', path.read_text()):
            package = any(each.startswith(f"{name}.") for each in listed)
            known = package or name in listed | {*names.PUBLIC} or find_spec(name) is None
            assert known, f"{path}: {name}"


def test_nothing_needs_the_grpc_servers_and_stubs_of_flower():
    gone = re.compile(r"(?:from|import)\s.*(?:pb2_grpc|grpc_health|flwr\.\S*grpc)")
    for room in ("strategies", "tasks", "client", "server", "simulation", "deploy", "benchmarks", "tests"):
        for path in (ROOT / room).rglob("*.py"):
            assert not gone.search(path.read_text()), path


def test_a_version_that_was_not_tried_is_refused_in_a_line_that_says_how_to_try_it(monkeypatch):
    monkeypatch.delenv(TRYING, raising=False)
    for tried in TRIED:
        monkeypatch.setattr(versions, "version", lambda _, tried=tried: tried)
        assert versions.refusal() is None
    for other in ("1.39.0", "1.42.1", "1.43.0"):
        monkeypatch.setattr(versions, "version", lambda _, other=other: other)
        refusal = versions.refusal()
        assert refusal is not None
        assert refusal.startswith(f"Flower is {other}, and Cohort was tried with 1.40.0, 1.41.0 and 1.42.0;")
        assert versions.TRY in refusal
        assert "\n" not in refusal
    monkeypatch.setenv(TRYING, "1.43.0")
    assert versions.refusal() is None
    monkeypatch.setenv(TRYING, "1.44.0")
    assert versions.refusal() is not None


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """Return a function that writes a version of the module ``flwr_next`` and imports it."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(text):
        (tmp_path / "flwr_next.py").write_text(textwrap.dedent(text))
        module = ModuleType("flwr_next")
        sys.modules.pop("flwr_next", None)
        exec(
            compile((tmp_path / "flwr_next.py").read_text(), str(tmp_path / "flwr_next.py"), "exec"),
            vars(module),
        )
        monkeypatch.setitem(sys.modules, "flwr_next", module)
        return module

    return imported


BEFORE = """
    PATIENCE = 30

    def pull(state):
        return state[f"{'a'}"]

    class State:
        def store(self):
            return 1
"""


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (BEFORE, ([], [])),
        (BEFORE.replace("return 1", "'''Store.'''\n            return 1  # one"), ([], [])),
        (BEFORE.replace("return 1", "return 2"), ([], ["flwr_next:State.store"])),
        (BEFORE.replace("30", "60"), ([], ["flwr_next:PATIENCE"])),
        (BEFORE.replace("(state)", "(state, store=None)"), ([], ["flwr_next:pull"])),
        (BEFORE.replace("pull", "fetch"), (["flwr_next:pull"], [])),
        (BEFORE.replace("class State", "class Other"), (["flwr_next:State.store"], [])),
    ],
    ids=["same", "comments", "method", "constant", "signature", "function gone", "class gone"],
)
def test_what_is_gone_or_has_changed_is_told(flower, monkeypatch, tmp_path, after, expected):
    flower(BEFORE)
    used = ["flwr_next:PATIENCE", "flwr_next:pull", "flwr_next:State.store"]
    monkeypatch.setattr(names, "imported", dict)
    monkeypatch.setattr(names, "files", lambda: dict.fromkeys(used, "deploy/cli.py"))
    monkeypatch.setattr(names, "is_mentioned", lambda *_: True)
    monkeypatch.setattr(names, "RECORDED", tmp_path / "names.txt")
    names.write()
    assert list(names.recorded()) == sorted(used)
    flower(after)
    assert names.differences() == expected


def test_the_command_fails_if_a_name_is_gone(monkeypatch, capsys):
    monkeypatch.setattr(names, "differences", lambda: (["flwr.no:name"], ["flwr.other:name"]))
    assert __main__.main(["--names"]) == 1
    assert (
        "1 are gone, 1 have changed\n  gone: flwr.no:name\n  changed: flwr.other:name\n"
        in capsys.readouterr().out
    )


def test_the_command_tries_the_installed_version_with_the_contract_tests(monkeypatch):
    started = []

    def run(command, env, **_):
        started.append((command, env))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(__main__.subprocess, "run", run)
    monkeypatch.setattr(names, "differences", lambda: ([], []))
    assert __main__.main(["-x"]) == 3
    ((command, environment),) = started
    assert command[:3] == [sys.executable, "-m", "pytest"]
    assert command[-1] == "-x"
    assert environment[TRYING] == version("flwr")
    assert all((ROOT / path).exists() for path in (*__main__.CONTRACT, __main__.LEFT_OUT[1]))


def test_the_makefile_has_a_lane_for_each_older_version_that_was_tried():
    assert f"OLDER_FLOWERS := {' '.join(TRIED[:-1])}\n" in (ROOT / "Makefile").read_text()
