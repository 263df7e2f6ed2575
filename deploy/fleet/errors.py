"""Translates Flower's errors into what a node receives: a gRPC status and a text."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import Any

import grpc

_CATALOG = "flwr.supercore.error.catalog"
_ERRORS = "flwr.supercore.error"
# Codes of errors in Flower's catalogue.
REGISTRATION_DISABLED, UNREGISTRATION_DISABLED, BAD_INTERVAL = 2001, 2002, 2003
NOT_ACTIVATED, NOT_DEACTIVATED, NOT_RUNNING = 2004, 2005, 2007
INTERNAL = "Internal server error."  # in place of the details of an unexpected error
# What Flower answers over HTTP, and the gRPC status with the same meaning. SuperNodes give up a reply after
# PERMISSION_DENIED, end after UNAUTHENTICATED, and try again after UNAVAILABLE.
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


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


def translation(code: int, details: Any = None) -> tuple[grpc.StatusCode, str]:
    """Return the status and the text that a node receives for an error of Flower.

    `code`: the code of the error. `details`: what else the node may know, as
    JSON.
    """
    known = importlib.import_module(_CATALOG).API_ERROR_MAP.get(code)
    status = grpc.StatusCode[_STATUS.get(known.http_status_code, "INTERNAL") if known else "INTERNAL"]
    message = known.public_message if known else INTERNAL
    return status, json.dumps({"code": int(code), "public_message": message, "public_details": details})


def error(code: int, text: str, details: str | None = None) -> Exception:
    """Return an error of Flower. `text` is for the server's log, `details` is what else the node may know."""
    found: Exception = importlib.import_module(_ERRORS).FlowerError(code, text, details)
    return found


@contextmanager
def translated(context: Any, method: str) -> Iterator[None]:
    """Abort a request with the translation of the error that its handler raises, and log the error.

    `RequestRefused` passes through.
    """
    flower_error = importlib.import_module(_ERRORS).FlowerError
    try:
        yield
    except RequestRefused:
        raise
    except flower_error as error:
        getLogger("flwr").error("[%s][ApiError:%s] %s", method, error.code, error.message)
        context.abort(*translation(error.code, error.public_details))
    except Exception as error:
        if context.code() not in (None, grpc.StatusCode.OK):  # the request was aborted before
            raise
        getLogger("flwr").error("[%s][UnexpectedError:%s] %s", method, type(error).__name__, error)
        context.abort(grpc.StatusCode.INTERNAL, INTERNAL)
