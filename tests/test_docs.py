"""The documents: their examples run, and their links lead somewhere."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from math import isnan
from pathlib import Path
from statistics import fmean

import click
import numpy as np
import pytest
import typer

import strategies
from benchmarks.results.files import Recorded, read
from deploy import cli

from .support.devices import Running
from .support.guides import ROOT, blocks

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("examples/*/*.md"),
        *(ROOT / each / "README.md" for each in ("strategies", "results")),
    ]
)
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
]


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Make the folder strategies/ importable under the name of the library, as its wheel does."""
    (tmp_path / "flwr_cohort").symlink_to(ROOT / "strategies")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "flwr_cohort"]:
        del sys.modules[name]


def _write_mnist(folder):
    generator = np.random.default_rng(1)
    images, labels = (
        generator.integers(0, 256, (3000, 28, 28), dtype=np.uint8),
        generator.integers(0, 10, 3000),
    )
    np.savez(folder / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)


def test_there_are_examples():
    assert len(BLOCKS) >= 6


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_runs(block, tmp_path):
    """Where it names a folder with MNIST, with made-up images and fewer rounds."""
    if '"/data"' in block:
        _write_mnist(tmp_path)
        block = block.replace('"/data"', repr(str(tmp_path))).replace("run(500)", "run(2)")
    exec(compile(block, "example", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", ["README.md", "docs/your-own-app.md"])
def test_the_strategies_that_users_paste_can_be_made(page):
    """No example calls `main`, which waits for clients."""
    found = re.findall(r"strategy = (\w+)\((.*)\)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    ours = [each for each in found if each[0] != "FedAvg"]
    assert ours
    for name, arguments in ours:
        assert eval(f"{name}({arguments})", {name: getattr(strategies, name)})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{target}#{anchor}"


def test_every_line_of_the_security_tables_has_a_test():
    tables, _ = (ROOT / "docs" / "reference" / "security.md").read_text().split("## Not promised")
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.endswith("| test |")]
    assert len(rows) > 30
    for row in rows:
        named = re.search(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert named, row
        assert f"def {named[2]}(" in (ROOT / named[1]).read_text(), row


results = cache(read)
FIGURE = re.compile(r"(-?[\d.]+)(?: %)?<!-- ([\w.-]+) \| (.+?) \| (.+?) -->")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_a_figure_in_a_document_is_the_mean_of_its_cell(page):
    text = page.read_text("utf-8")
    marked = FIGURE.findall(text)
    assert len(marked) == text.count("<!-- ")
    for shown, name, row, column in marked:
        found = results()[name]
        assert isinstance(found, Recorded), name
        decimals = len(shown.partition(".")[2])
        there = [value for value in found.values(row, column) if not isnan(value)]
        assert float(shown) == round(fmean(there), decimals), (name, row, column)


# Commands that need another one, a package of another extra, or data of some 100 MB; other tests run them.
NOT_HERE = ("--import", "--page", "--resume", "--engine ray", "--task cifar10", "--task femnist", "--track")
# The files that commands name.
FILES = {
    "phones.csv": "client,start,end\n0,0,90000\n1,3600,90000\n",
    "behaviour.json": json.dumps({"0": {"active": [0], "inactive": [90000], "finish_time": 90000}}),
    "capacity.json": json.dumps({"a": {"computation": 100, "communication": 1000}}),
}


def _commands():
    """Return the commands that train on this machine, of the blocks of all guides."""
    lines = [line for page in (ROOT / "docs").glob("*.md") for block in blocks(page.name) for line in block]
    commands = [re.sub(r"^\$ |\.venv/bin/", "", line) for line in lines]
    commands = [line for line in commands if re.match(r"(\w+=\S+ )?cohort (up|simulate)\b", line)]
    return sorted({line for line in commands if not any(each in line for each in NOT_HERE)})


def test_there_are_commands():
    assert len(_commands()) >= 20


def _succeeds(command, folder):
    """Run a command in a folder. Return what it prints."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("command", _commands())
def test_a_command_trains(command, tmp_path):
    """Two rounds, one seed, and the selectors that the command names or else one."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    if "/data" in command:
        _write_mnist(tmp_path)
        command = command.replace("/data", str(tmp_path))
    command = re.sub(r"--rounds \d+|--out \S+", "", command) + " --rounds 2 --out here"
    command = re.sub(r"--seeds \S+", "--seed 1", command)
    command += "" if "--selector " in command else " --selector md"
    _succeeds(command, tmp_path)
    histories = list((tmp_path / "here").rglob("history.jsonl"))
    assert len(histories) == command.count("--selector ")
    for history in histories:
        last = json.loads(history.read_text().splitlines()[-1])
        assert (last["type"], last["rounds"]) == ("end", 2)


@pytest.mark.slow
def test_a_run_is_studied_as_the_guides_say(tmp_path):
    """Its commands, with RUN for its folder; and those that need no run."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    train, advise = (line.removeprefix("$ ") for line in blocks("advice.md")[0] if line.startswith("$ "))
    _succeeds(train, tmp_path)
    assert "The log cannot tell: in its 60 rounds, " in " ".join(_succeeds(advise, tmp_path).split())
    lines = [line for page in (ROOT / "docs").glob("*.md") for block in blocks(page.name) for line in block]
    studies = {line for line in lines if re.match(r"cohort (advise|plot|selectors|sweep examples)\b", line)}
    assert len(studies) >= 5
    for line in sorted(studies):
        assert _succeeds(line.replace("RUN", "runs/tried/uniform"), tmp_path), line
    page = [line for line in lines if line.startswith("cohort page RUN")]
    assert len(page) == 1
    words = page[0].replace("RUN", str(tmp_path / "runs/tried")).split()[1:]
    running = Running(tmp_path / "page.log", *words)
    try:
        running.wait_for("http://")
    finally:
        running.end()


# Programs in blocks at which no test here looks: those of others; Flower's, which
# tests/packaging/test_templates.py runs; and Docker's (`make test-docker`).
OTHERS = (
    r"\.|apt|cd|chmod|createdb|createuser|curl|docker|echo|export|flwr|git|grep|install|jupyter|kill|kubectl|"
    "cohort|mkdir|pg_dump|pg_restore|pkg|pkill|proot-distro|python3?|scp|sed|sleep|ssh|systemctl|tail|tar"
)
NO_MANUALS = ("index.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
MANUALS = [page for page in PAGES if page.name not in NO_MANUALS]


def _programs(page):
    """Return the commands in a page's blocks, each as the list of a program and its arguments."""
    found = []
    for language, block in re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.M):
        lines = block.replace("\\\n", "").splitlines() if language in ("", "console") else []
        marked = [line for line in lines if re.match(r"(server|device)?\$ ", line)]
        for line in marked or lines:  # what follows a marked line is its output
            command = []
            for word in [*shlex.split(re.sub(r"^\w*\$ ", "", line), comments=True), "&&"]:
                if word not in ("&&", "&", "|"):
                    command += [word] if command or not re.fullmatch(r"sudo|\w+=.*", word) else []
                elif command:
                    found.append([command[0].removeprefix(".venv/bin/"), *command[1:]])
                    command = []
    return found


@pytest.mark.parametrize("page", MANUALS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_exist_and_take_these_options(page):
    for program, *arguments in _programs(page):
        if program == "cohort" and "--import" not in arguments:  # the next test runs such a command
            name, command, rest, context = program, typer.main.get_command(cli.cli), arguments, None
            while isinstance(command, click.Group):
                context = command.make_context(name, list(rest), parent=context)
                name, command, rest = command.resolve_command(
                    context, [*context._protected_args, *context.args]
                )
            command.make_context(name, list(rest), parent=context)
        elif program == "make":
            assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), arguments
        elif program == "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            for names in re.findall(r"\[([\w,]+)\]", " ".join(arguments)):
                assert set(names.split(",")) <= set(extras), arguments
        else:
            assert re.fullmatch(OTHERS, program), (program, arguments)


@pytest.mark.slow
def test_a_selector_of_ones_own_is_compared_as_the_guide_says(tmp_path):
    """The file and the command of the guide, with fewer rounds."""
    _, text = (ROOT / "docs" / "selectors.md").read_text("utf-8").split("## Your own selector")
    (tmp_path / "my.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    command = re.search(r"^cohort simulate .*", text, re.MULTILINE)[0]
    done = subprocess.run(
        [Path(sys.executable).parent / "cohort", *shlex.split(command)[1:], "--rounds", "2", "--out", "here"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Compared with md" in done.stdout
    assert "by-square-root: " in done.stdout


# Reference pages that no code can write.
BY_HAND = ("containers.md", "forecast.md", "security.md", "simulation.md", "tasks.md")


def test_the_reference_pages_are_what_the_code_says():
    """`make reference` writes them. Not in this process: examples have registered selectors here."""
    script = (
        "import json, runpy; print(json.dumps(runpy.run_path('docs/extensions/reference.py')['pages']()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    pages = json.loads(done.stdout)
    folder = ROOT / "docs" / "reference"
    assert {page.name for page in folder.iterdir()} == {*pages, *BY_HAND}
    for name, text in pages.items():
        assert (folder / name).read_text("utf-8") == text, name


def test_every_file_has_a_first_sentence_for_make_tree():
    first_sentence = runpy.run_path(str(ROOT / "docs" / "extensions" / "tree.py"))["first_sentence"]
    for room in ("strategies", "tasks", "client", "server", "simulation", "deploy", "benchmarks", "docs"):
        for file in (ROOT / room).rglob("*.py"):
            assert re.fullmatch(r".{10,}\.", first_sentence(file)), file
