"""The entry point of the command `cohort`."""

import sys

import pytest

from deploy.command import main


class Interrupted:
    """An import that Ctrl-C interrupts."""

    @staticmethod
    def find_spec(*_):
        raise KeyboardInterrupt


def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(monkeypatch):
    monkeypatch.delitem(sys.modules, "deploy.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
