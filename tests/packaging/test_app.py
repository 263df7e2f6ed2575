"""The app `cohort-app`: what its wheel holds, and what Flower ships to the nodes."""

import io
import re
import tomllib
import zipfile
from pathlib import Path

from flwr.cli.build import build_fab_from_disk

from deploy.flower.app_folder import app_folder
from deploy.flower.submission import copy_app
from deploy.page.http_interface import FILES

from ..support.environments import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SHIPPED = ("strategies", "tasks", "client", "server")


def test_flower_ships_the_code_of_the_nodes_and_nothing_else(tmp_path):
    copy_app(app_folder(), tmp_path / "app", tmp_path)
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path / "app"))).namelist()
    code = {path.relative_to(ROOT).as_posix() for room in SHIPPED for path in (ROOT / room).rglob("*.py")}
    assert set(names) == code | {"pyproject.toml", ".info/CONTENT"}


def test_in_a_clone_the_app_is_the_clone():
    assert app_folder() == ROOT


def test_the_wheel_brings_the_apps_configuration(app_wheel):
    archive = zipfile.ZipFile(app_wheel)
    assert archive.read("deploy/app.toml") == (ROOT / "pyproject.toml").read_bytes()
    folders = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" not in name}
    assert folders == {*SHIPPED, "simulation", "deploy", "benchmarks"}
    assert not {Path(name).suffix for name in archive.namelist()} & {".md", ".png", ".ipynb"}


def test_the_wheel_brings_the_files_of_the_live_page(app_wheel):
    files = {path.name for path in (ROOT / "deploy" / "page" / "static").iterdir()}
    assert files == {name for name, _ in FILES.values()}
    assert {f"deploy/page/static/{name}" for name in files} <= set(zipfile.ZipFile(app_wheel).namelist())


def test_the_wheel_registers_the_command_and_its_parts(app_wheel):
    archive = zipfile.ZipFile(app_wheel)
    (file,) = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
    entry_points = archive.read(file).decode().splitlines()
    assert "cohort = deploy.command:main" in entry_points
    assert "bench = benchmarks.command:bench" in entry_points


def test_it_is_private_and_pinned_to_the_locked_flower():
    project = PROJECT["project"]
    assert project["name"] == "cohort-app"
    assert "Private :: Do Not Upload" in project["classifiers"]
    (flower,) = [each for each in project["dependencies"] if each.startswith("flwr")]
    assert flower in (ROOT / "requirements.lock").read_text().splitlines()
    assert "==" in flower


def test_it_depends_on_all_that_the_library_depends_on():
    library = tomllib.loads((ROOT / "strategies" / "pyproject.toml").read_text())["project"]
    own = set(PROJECT["project"]["dependencies"])
    assert {each for each in library["dependencies"] if not each.startswith("flwr")} <= own
    assert library["optional-dependencies"]["optim"] == PROJECT["project"]["optional-dependencies"]["optim"]


def test_the_images_install_hashed_packages_in_the_locked_versions():
    locked = {line.partition(" ")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}
    lists = sorted((ROOT / "deploy" / "locks").glob("*.txt"))
    assert [file.stem for file in lists] == ["client", "digits", "server", "torch"]
    for file in lists:
        entries = re.findall(
            r"^([\w.-]+==\S+)((?:.*\n)(?: +--hash=sha256:[0-9a-f]{64}.*\n)+)", file.read_text(), re.M
        )
        assert {name for name, _ in entries} <= locked, file
        assert len(entries) == len(re.findall(r"^[\w.-]+==", file.read_text(), re.M)), file
    installs = re.findall(r"pip .*?install [^\n]*", (ROOT / "deploy" / "Dockerfile").read_text())
    assert len(installs) == 4
    assert all("--require-hashes" in each and "--no-deps" in each for each in installs), installs
