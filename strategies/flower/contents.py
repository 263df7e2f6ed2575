"""Finds the records of one kind in the content of a message."""

from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

_Record = TypeVar("_Record", ArrayRecord, MetricRecord, ConfigRecord)


def of_kind(content: RecordDict, kind: type[_Record]) -> dict[str, _Record]:
    """Return the records of one kind, by name.

    Flower's own ``content.array_records`` and its like check each record again, which takes longer than the
    rest of reading a reply.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}
