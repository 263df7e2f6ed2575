"""Replaces the content of replies that cannot be read, so that no reply causes an error in later code."""

from collections.abc import Iterable, Iterator
from logging import WARNING

from flwr.app import Error, Message, RecordDict
from flwr.common import log

from ..clients.printable import printable

MOST_RECORDS = 100
"""The most records in a reply. The server needs one array record and a few records with numbers and text."""
_UNREADABLE = 0  # flwr.common.constant.ErrorCode.UNKNOWN


def readable(replies: Iterable[Message]) -> Iterator[Message]:
    """Yield each reply that is a message, with empty content or an error for what cannot be read."""
    for reply in replies:
        try:
            wrong = _what_is_wrong(reply)
        except Exception as error:  # a reply may cause any error
            wrong = printable(error)
        if not wrong:
            yield reply
        elif isinstance(reply, Message):
            log(WARNING, "A reply of node %d is unreadable: %s", reply.metadata.src_node_id, wrong)
            if reply.has_content():
                reply.content = RecordDict()
            else:
                reply.error = Error(_UNREADABLE, wrong)
            yield reply


def _what_is_wrong(reply: Message) -> str:
    if reply.has_error():
        return ""
    content = reply.content
    if not isinstance(content, RecordDict):
        return f"{type(content).__name__} instead of records"
    return f"{len(content)} records: must be at most {MOST_RECORDS}" if len(content) > MOST_RECORDS else ""
