"""The library `flwr-cohort`: its files, its metadata, and its use in another app."""

import ast
import email
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from textwrap import dedent

import pytest

from ..support.environments import ROOT, environment_with

SOURCE = ROOT / "strategies"
# Flower's public modules. Others may move or vanish in any release.
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.common", "flwr.serverapp", "flwr.serverapp.strategy"}


def code_files():
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    assert "rounds/logic.py" in files
    return files


def test_the_wheel_holds_the_code_as_flwr_cohort_and_nothing_else(library_wheel):
    names = zipfile.ZipFile(library_wheel).namelist()
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == {f"flwr_cohort/{name}" for name in code_files() | {"py.typed"}}
    assert "flwr_cohort-0.1.0.dist-info/licenses/LICENSE" in names


def test_the_sdist_holds_what_the_wheel_is_built_from(library):
    (sdist,) = library.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    others = {"py.typed", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert inside == code_files() | others


def test_the_licence_is_that_of_the_repository():
    assert (SOURCE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_package_index_accepts_it(library):
    run = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *library.iterdir()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("PASSED") == 2


def test_its_metadata(library_wheel):
    archive = zipfile.ZipFile(library_wheel)
    (file,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(archive.read(file))
    assert metadata["Name"] == "flwr-cohort"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    classifiers = metadata.get_all("Classifier")
    assert classifiers is not None
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)}
    assert versions | {"Typing :: Typed"} <= set(classifiers)
    assert metadata.get_all("Requires-Dist") == [
        "flwr<2,>=1.39",
        "numpy>=2.0",
        "pydantic>=2.10",
        "mlflow>=2.20; extra == 'mlflow'",
        "cvxpy>=1.6; extra == 'optim'",
        "prometheus-client>=0.20; extra == 'prometheus'",
        "tensorboardx>=2.6; extra == 'tensorboard'",
        "wandb>=0.19; extra == 'wandb'",
    ]


def test_it_imports_its_dependencies_and_flowers_public_names_only():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            else:
                continue
            for module in modules:
                top = module.partition(".")[0]
                known = top in {"numpy", "pydantic", "cvxpy"} | sys.stdlib_module_names or module in PUBLIC
                assert known, f"{path.relative_to(ROOT)} imports {module}"


def test_both_distributions_have_one_version():
    versions = {
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
        for folder in (ROOT, SOURCE)
    }
    assert len(versions) == 1


@pytest.fixture(scope="module")
def python(library_wheel, tmp_path_factory):
    return environment_with(library_wheel, tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture
def other_app(tmp_path):
    """Return the folder of an app with top-level names that this repository has, too."""
    for package in ("client", "server", "strategies"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"OWNER = 'the other app'  # {package}\n")
    (tmp_path / "tasks.py").write_text("OWNER = 'the other app'\n")
    return tmp_path


def test_it_works_beside_an_app_with_its_own_rooms(python, other_app):
    program = """
        import sys
        from importlib.resources import files

        import client, server, strategies, tasks
        import flwr_cohort
        from flwr_cohort import AdaptiveOSMD, selectors

        for module in (client, server, strategies, tasks):
            assert module.OWNER == "the other app"
        assert files(flwr_cohort).joinpath("py.typed").is_file()
        assert sys.prefix in flwr_cohort.__file__
        AdaptiveOSMD(clients_per_round=2)
        for name in selectors.available():
            selectors.selector_type(name)
        assert len(selectors.create("md", 5, clients_per_round=2).select(1).clients) > 0
        assert not any(name.startswith("strategies.") for name in sys.modules)
    """
    run = subprocess.run(
        [python, "-c", dedent(program)], cwd=other_app, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_type_checkers_see_its_types(python, other_app):
    (other_app / "typed.py").write_text(
        "from flwr_cohort import AdaptiveOSMD\n\n"
        "AdaptiveOSMD(clients_per_round=2)\n"
        "AdaptiveOSMD(clients_per_round='two')\n"
    )
    # The types of NumPy and Flower are in the cache of `make lint`, which runs first in CI.
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache"]
    command = [*mypy, "--python-executable", python, "typed.py"]
    run = subprocess.run(command, cwd=other_app, capture_output=True, text=True, check=False)
    assert run.stdout.startswith("typed.py:4: error: "), run.stdout + run.stderr
    assert "Found 1 error in 1 file" in run.stdout
