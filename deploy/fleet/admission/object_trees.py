"""Lets only ServerApps state which children an object has, so that no node affects the objects of others.

A message is a tree of objects. Flower stores an object once, under its hash, for all senders, with the
children that the first sender states. It refuses later senders that state other children. So a malicious node
that can guess an object's content, such as the settings of the next round or another client's name, could
send the object first with wrong children, and so keep others from sending the object.

Here a reply is stored as a flat tree: the reply's message is the parent of all objects of the reply. This is
enough to fetch and to delete the objects, because a program that inflates an object reads the ids of the
object's children from its content. So the message of a reply is the only object whose children a node states.
The message's hash covers the ids of the children, and this hash is checked first.
"""

import importlib
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from deploy.fleet import protocol
from deploy.fleet.storage.statements import AMONG, executor, listed

_MESSAGES = "flwr.proto.message_pb2"

_COUNTS = f"SELECT object_id, ref_count FROM objects WHERE object_id {AMONG}"
_SIZES = f"SELECT object_id, length(content) FROM objects WHERE object_id {AMONG}"
_CONTENTS = f"SELECT object_id, content FROM objects WHERE object_id {AMONG}"
_TREES = (
    "WITH RECURSIVE part (id) AS "
    "(SELECT value FROM json_each(?) UNION SELECT child_id FROM object_children JOIN part ON parent_id = id) "
    "SELECT parent_id, child_id FROM part JOIN object_children ON parent_id = id ORDER BY 1, 2"
)
_WITHOUT_CHILDREN = (
    f"SELECT object_id FROM objects WHERE object_id {AMONG} "
    "AND NOT EXISTS (SELECT 1 FROM object_children WHERE parent_id = object_id)"
)
_ADD_CHILD = "INSERT INTO object_children (parent_id, child_id) VALUES (?, ?)"
_COUNT = f"UPDATE objects SET ref_count = ref_count + 1 WHERE object_id {AMONG}"


def is_hash_of(message: Any, tree: Any) -> bool:
    """Tell whether the id of a tree's root is the hash of a message and of the ids of its children."""
    name: str = tree.object_id
    content = protocol.message_content(message, (child.object_id for child in tree.children))
    return protocol.name_of(content) == name


def flat(store: Any, tree: Any) -> Any:
    """Return the flat tree of a reply. Call this in the transaction that stores the flat tree.

    The store may already know an object of the reply. The object then keeps the children that a ServerApp
    stated.

    Raises ValueError if the reply's message is a part of another message, or one of the reply's objects is a
    message.
    """
    new = importlib.import_module(_MESSAGES).ObjectTree
    names = list(dict.fromkeys(each.object_id for each in protocol.each_object(tree)))
    with store.alone() as database:
        references = reference_counts(database, names)
        root = tree.object_id
        if references.pop(root, 0):
            raise ValueError(f"Object {root} is a part of another message")
        if 0 in references.values():  # otherwise trees could contain each other and grow without limit
            raise ValueError(f"A part of message {root} is a message")
        known = stored_trees(database, references)
    unknown = (new(object_id=name) for name in names if name != root and name not in references)
    return new(object_id=root, children=[*known, *unknown])


def reference_counts(database: Any, names: Collection[str]) -> dict[str, int]:
    """Return, for each of these objects that is stored, how many stored objects have it as a child."""
    return _looked_up(database, _COUNTS, names)


def sizes(database: Any, names: Collection[str]) -> dict[str, int]:
    """Return the number of stored bytes of each of these objects. Unknown objects are left out."""
    return _looked_up(database, _SIZES, names)


def contents(database: Any, names: Collection[str]) -> dict[str, bytes]:
    """Return the deflated contents of these objects. Unknown objects are left out."""
    return _looked_up(database, _CONTENTS, names)


def _looked_up(database: Any, statement: str, names: Collection[str]) -> dict[str, Any]:
    """Return the value that a statement finds for each of these objects."""
    found = executor(database)(statement, (listed(names),))
    return {name: value for name, value in found if name in names}


def stored_trees(database: Any, roots: Collection[str]) -> list[Any]:
    """Return the trees of stored objects, as ObjectTree."""
    new = importlib.import_module(_MESSAGES).ObjectTree
    children: dict[str, list[str]] = defaultdict(list)
    for parent, name in executor(database)(_TREES, (listed(roots),)):
        children[parent].append(name)

    def grow(name: str) -> Any:
        return new(object_id=name, children=[grow(each) for each in children.get(name, ())])

    return [grow(root) for root in roots]


def state_children(store: Any, run: int, tree: Any) -> None:
    """Store the children that a ServerApp states for objects that a reply has stored without children."""
    parents = {each.object_id: each for each in protocol.each_object(tree) if each.children}
    with store.alone() as database:
        execute = executor(database)
        flat = {name for (name,) in execute(_WITHOUT_CHILDREN, (listed(parents),))}
        for name, parent in parents.items():  # children first
            if name not in flat:
                continue
            names = [each.object_id for each in parent.children]
            for each in parent.children:
                store.preregister(run, each)
            execute(_ADD_CHILD, [(name, each) for each in names])
            execute(_COUNT, (listed(names),))
