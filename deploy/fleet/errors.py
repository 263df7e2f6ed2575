"""What a node receives for an error: a gRPC status, and a text that SuperNodes of all versions know."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import Any

import grpc

INTERNAL = "Internal server error."  # in place of the details of an unexpected error
# The codes of errors in Flower's catalogue, and what a node receives for each. SuperNodes give up a reply
# after PERMISSION_DENIED, end after UNAUTHENTICATED, and try again after UNAVAILABLE.
REGISTRATION_DISABLED, UNREGISTRATION_DISABLED, BAD_INTERVAL = 2001, 2002, 2003
NOT_ACTIVATED, NOT_DEACTIVATED, NOT_RUNNING, NO_RUN, NO_APP = 2004, 2005, 2007, 2008, 2009
_AUTHENTICATED = "SuperNode authentication is enabled. All SuperNodes must be {} via the CLI."
ERRORS = {
    REGISTRATION_DISABLED: ("FAILED_PRECONDITION", _AUTHENTICATED.format("registered")),
    UNREGISTRATION_DISABLED: ("FAILED_PRECONDITION", _AUTHENTICATED.format("unregistered")),
    BAD_INTERVAL: ("INVALID_ARGUMENT", "Invalid heartbeat interval."),
    NOT_ACTIVATED: ("FAILED_PRECONDITION", "Failed to activate SuperNode."),
    NOT_DEACTIVATED: ("FAILED_PRECONDITION", "Failed to deactivate SuperNode."),
    NOT_RUNNING: ("PERMISSION_DENIED", "The current run status does not allow this Fleet API operation."),
    NO_RUN: ("PERMISSION_DENIED", "Failed to get run."),
    NO_APP: ("PERMISSION_DENIED", "Failed to get FAB."),
}


class FleetError(Exception):
    """A request cannot be answered. `code` is one of `ERRORS`, `text` is for the server's log.

    `details`: what else the node may know.
    """

    def __init__(self, code: int, text: str, details: str | None = None) -> None:
        super().__init__(text)
        self.code, self.details = code, details


class RequestRefused(Exception):  # noqa: N818
    """A request is refused.

    `reason`: the reason, which is logged. `status`: the name of the gRPC status that the node receives. After
    UNAUTHENTICATED a SuperNode ends. After UNAVAILABLE it tries again. After PERMISSION_DENIED it drops the
    reply that it was sending. `answer`: the text that the node receives. (default: the reason)
    """

    def __init__(self, reason: str, status: str = "UNAUTHENTICATED", answer: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.answer = answer or reason


def translation(code: int, details: str | None = None) -> tuple[grpc.StatusCode, str]:
    """Return the status and the text, as JSON, that a node receives for an error of `ERRORS`."""
    status, message = ERRORS[code]
    text = json.dumps({"code": code, "public_message": message, "public_details": details})
    return grpc.StatusCode[status], text


@contextmanager
def translated(context: Any, method: str) -> Iterator[None]:
    """Abort a request with the translation of the error that its handler raises, and log the error.

    `RequestRefused` passes through.
    """
    try:
        yield
    except RequestRefused:
        raise
    except FleetError as error:
        getLogger("flwr").error("[%s][ApiError:%s] %s", method, error.code, error)
        context.abort(*translation(error.code, error.details))
    except Exception as error:
        if context.code() not in (None, grpc.StatusCode.OK):  # the request was aborted before
            raise
        getLogger("flwr").error("[%s][UnexpectedError:%s] %s", method, type(error).__name__, error)
        context.abort(grpc.StatusCode.INTERNAL, INTERNAL)
