"""The two distributions, built once."""

import pytest

from ..support.environments import ROOT, build


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Return a folder with the library's sdist, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("library")
    build(ROOT / "strategies", folder)
    return folder


@pytest.fixture(scope="session")
def library_wheel(library):
    (wheel,) = library.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def app_wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app")
    build(ROOT, folder, "--wheel")
    (wheel,) = folder.glob("*.whl")
    return wheel
