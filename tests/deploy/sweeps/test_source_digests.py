"""Digests of sources: which files count, and which changes."""

import pytest

from deploy.flower.app_folder import CODE
from deploy.sweeps.source_digests import closure, digest

FILES = {
    "room/__init__.py": "from room import unused",
    "room/top.py": "import numpy\nfrom . import helper\nfrom .deep.leaf import value\n",
    "room/helper.py": "def late():\n    from other import chosen\n",
    "room/deep/__init__.py": "",
    "room/deep/leaf.py": "if TYPE_CHECKING:\n    from room import unused\nvalue = 1\n",
    "room/unused.py": "",
    "other/__init__.py": "from importlib import import_module\nimport_module(f'.{1}', __package__)\n",
    "other/chosen.py": "",
    "other/by_name.py": "import room.last\n",
    "room/last.py": "",
}


def tree(folder):
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_closure_has_what_a_module_imports_and_no_more(tmp_path):
    tree(tmp_path)
    found = [path.relative_to(tmp_path).as_posix() for path in closure(["room.top"], tmp_path)]
    assert found == ["other/chosen.py", "room/deep/leaf.py", "room/helper.py", "room/top.py"]


def test_a_package_that_imports_by_name_counts_with_all_its_modules(tmp_path):
    tree(tmp_path)
    found = [path.relative_to(tmp_path).as_posix() for path in closure(["other"], tmp_path)]
    assert found == ["other/__init__.py", "other/by_name.py", "other/chosen.py", "room/last.py"]


def test_a_module_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"module = 'room.none': there is no such module"):
        closure(["room.none"], tmp_path)


BEFORE = 'def f(x):\n    """Double."""\n    return 2 * x\n'


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (
            BEFORE,
            'def f(x):\n    """Double the\n    number."""\n\n    # twice\n    return 2 * x  # and no more\n',
            True,
        ),
        (BEFORE, 'def f(x):\n    """Double."""\n    return 3 * x\n', False),
        (BEFORE, 'def f(x):\n    """Double."""\n    return 2 * x + len("# no comment")\n', False),
        ('x = "# one"\n', 'x = "# two"\n', False),
    ],
    ids=[
        "comments and docstrings",
        "a number",
        "a text that looks like a comment",
        "a text with a hash sign",
    ],
)
def test_only_code_changes_a_digest(tmp_path, before, after, same):
    found = []
    for name, text in (("a", before), ("b", after)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.py").write_text(text)
        found.append(digest([tmp_path / name / "f.py"], tmp_path / name))
    assert (found[0] == found[1]) is same


def test_a_sweep_depends_on_the_selectors_the_tasks_and_the_batched_simulation():
    found = {path.relative_to(CODE).as_posix() for path in closure(["deploy.sweeps.trial_worker"])}
    assert {
        "strategies/selectors/forecast/forecast.py",
        "strategies/rounds/guard/guard.py",
        "tasks/digits.py",
        "tasks/models/softmax.py",
        "simulation/simulator.py",
        "simulation/kernels/dense.py",
        "simulation/availability/registry.py",
        "deploy/engines/batched.py",
        "deploy/runs/trial_statistics.py",
    } <= found
    assert not [name for name in found if name.startswith(("tests/", "benchmarks/"))]
