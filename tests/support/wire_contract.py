"""What a version of Flower puts on the wire of the Fleet API, as lines of text.

`python -m tests.support.wire_contract` prints the lines of the Flower that is installed. `RECORDED` holds
those of Flower 1.39.
"""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from deploy.fleet import wire

RECORDED = Path(__file__).with_name("wire_of_1.39.txt")


def lines():
    """Return a line for each method, for each field of a message that a method sends, and for each object.

    The objects are those of a message's content. An object's name is a hash of its bytes.
    """
    found = {}
    for each in wire.METHODS.values():
        names = (each.request.DESCRIPTOR.full_name, each.response.DESCRIPTOR.full_name)
        found[each.path] = [f"{each.path} {names[0]} {names[1]}"]
        for kind in (each.request, each.response):
            _add(kind.DESCRIPTOR, found)
    return [line for name in sorted(found) for line in found[name]] + [*_objects(_content())]


def _add(message, found):
    if message.full_name in found:
        return
    fields = sorted(message.fields, key=lambda field: field.number)
    found[message.full_name] = [f"{message.full_name} {' '.join(_described(field))}" for field in fields]
    for field in fields:
        if field.message_type is not None:
            _add(field.message_type, found)


def _described(field):
    """Yield the number, the name and the type of a field, and whether it is repeated."""
    yield str(field.number)
    yield field.name
    kind = field.message_type or field.enum_type
    yield f"type-{field.type}" if kind is None else kind.full_name
    if field.is_repeated:
        yield "repeated"


def _content():
    arrays = ArrayRecord([np.arange(3, dtype=np.float32), np.eye(2)])
    metrics = MetricRecord({"loss": 0.5, "steps": 3, "per-class": [0.25, 0.75]})
    config = ConfigRecord({"name": "a", "yes": True, "bytes": b"x", "many": [1, -2]})
    return RecordDict({"arrays": arrays, "metrics": metrics, "config": config})


def _objects(each):
    yield f"{type(each).__name__} {each.object_id}"
    for child in (each.children or {}).values():
        yield from _objects(child)


if __name__ == "__main__":
    print("\n".join(lines()))
