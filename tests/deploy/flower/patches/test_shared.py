"""What the patches of several programs share."""

import io
import logging

import pytest

from deploy.flower.patches import shared


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_lines_that_no_handler_writes_are_skipped(monkeypatch, level):
    logger, handler = logging.Logger("flwr", logging.DEBUG), logging.StreamHandler(io.StringIO())
    handler.setLevel(level)
    logger.addHandler(handler)
    monkeypatch.setattr(shared, "getLogger", lambda name: logger)
    shared.skip_unseen_lines()
    assert logger.isEnabledFor(logging.DEBUG) == (level == logging.DEBUG)
    logger.info("a line")
    logger.debug("a detail")
    assert handler.stream.getvalue() == ("a line\na detail\n" if level == logging.DEBUG else "a line\n")
