"""The list of removed clients follows its file, and survives a file that is missing or damaged."""

import pytest

from strategies.clients.overrides import Removals


def test_a_collection_is_the_list():
    assert Removals(["a", "b"]).current() == {"a", "b"}
    assert Removals().current() == set()


def test_a_file_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "revoked.json"
    path.write_text('["a"]')
    removals = Removals(path)
    assert removals.current() == {"a"}
    path.write_text('["a", "b"]')
    assert removals.current() == {"a", "b"}
    path.write_text("[]")
    assert removals.current() == set()


@pytest.mark.parametrize("damage", [None, '["a", ', '{"a": 1}', "[1]", "\udcff"])
def test_a_missing_or_damaged_file_changes_nothing_and_is_reported_once(tmp_path, damage):
    lines = []
    path = tmp_path / "revoked.json"
    path.write_text('["a"]')
    removals = Removals(str(path), lines.append)
    assert removals.current() == {"a"}
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage.encode("utf-8", "surrogateescape"))
    for _ in range(3):
        assert removals.current() == {"a"}
    assert len(lines) == 1
    assert lines[0].startswith(f"overrides.removed = {str(path)!r}: cannot be read: ")
    path.write_text('["a", "c"]')
    assert removals.current() == {"a", "c"}
