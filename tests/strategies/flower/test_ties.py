"""What the library takes for granted in Flower beyond its public names, on each version that it supports."""

import logging

from flwr import common
from flwr.app import RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from simulation.grid import InProcessGrid
from strategies import half_precision
from strategies.flower import exchanges, messages


def test_the_log_function_is_public_and_writes_to_flowers_logger(caplog):
    assert "log" in common.__all__
    common.log(logging.WARNING, "A node is %s", "back")
    assert "A node is back" in caplog.messages


def test_the_codes_of_errors_are_flowers():
    assert messages._APP_RAISED == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert exchanges._UNREADABLE == half_precision._NO_MOD == ErrorCode.UNKNOWN


def test_an_app_without_a_handler_is_told_from_one_whose_handler_fails():
    """The error is that of Flower's own ClientApp."""
    app = ClientApp()

    @app.query("fails")
    def fails(*_):
        raise ValueError("no data")

    grid = InProcessGrid(app, [{}])
    (node,) = grid.get_node_ids()
    for kind, lacks in (("query.status", True), ("query.fails", False)):
        (reply,) = grid.send_and_receive([messages.question(kind, node, 10.0, RecordDict())])
        assert messages.lacks_handler(reply) is lacks, reply.error
