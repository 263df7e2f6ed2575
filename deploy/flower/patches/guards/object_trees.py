"""Lets only ServerApps state which children an object has, so that no node affects the objects of others.

A message is a tree of objects. Flower stores an object once, under its hash, for all senders. It believes the
first sender about the object's children, and refuses later senders that state other children. So a malicious
node that can guess an object, such as the settings of the next round or another client's name, could keep
others from sending that object.

Here a reply is stored as a flat tree: the reply's message is the parent of all objects of the reply. This is
enough to fetch and to delete the objects. A program that inflates an object reads the ids of its children
from the object's content. The message of a reply is the only object whose children a node states. The
message's hash covers the ids of the children, and this hash is checked first.
"""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

_OBJECTS = "flwr.supercore.inflatable.inflatable_object"
_STORE = "flwr.supercore.object_store.sql_object_store"
_TABLES = "flwr.supercore.state.schema.objectstore_models"
_MESSAGES = "flwr.proto.message_pb2"
USED = (
    *(f"{_OBJECTS}:{name}" for name in ("HEAD_BODY_DIVIDER", "HEAD_VALUE_DIVIDER", "iterate_object_tree")),
    *(f"{_STORE}:SqlObjectStore.{name}" for name in ("preregister", "get_object_tree", "_mutation_session")),
    *(f"{_TABLES}:StoredObject.{name}" for name in ("object_id", "ref_count")),
    *(f"{_TABLES}:ObjectChild.{name}" for name in ("parent_id", "child_id")),
    *(f"{_MESSAGES}:{name}" for name in ("Message", "ObjectTree")),
)


def is_hash_of(message: Any, tree: Any) -> bool:
    """Tell whether the id of a tree's root is the hash of a message with the children that the tree states.

    Parameters
    ----------
    message : Message
        The message without its content, as it is sent.
    tree : ObjectTree
        The tree whose root has the message's id.
    """
    objects = importlib.import_module(_OBJECTS)
    metadata = type(message.metadata)()
    metadata.CopyFrom(message.metadata)
    metadata.message_id = ""  # Flower computes the hash without the id
    hashed = importlib.import_module(_MESSAGES).Message(metadata=metadata)
    if message.HasField("error"):
        hashed.error.CopyFrom(message.error)
    body = hashed.SerializeToString(deterministic=True)
    head = ("Message", ",".join(child.object_id for child in tree.children), str(len(body)))
    text = objects.HEAD_VALUE_DIVIDER.join(head) + objects.HEAD_BODY_DIVIDER.decode()
    name: str = tree.object_id
    return hashlib.sha256(text.encode() + body).hexdigest() == name


def flat(store: Any, tree: Any) -> Any:
    """Return the flat tree that is stored for a reply. Call this in the transaction that stores the tree.

    An object that the store already knows keeps the children that a ServerApp stated.

    Parameters
    ----------
    store : flwr.supercore.object_store.sql_object_store.SqlObjectStore
        The SuperLink's store of objects.
    tree : ObjectTree
        The tree that the node sent with the reply.

    Raises
    ------
    ValueError
        If the reply's message is a part of another message, or one of the reply's objects is a message.
    """
    sql, objects = importlib.import_module("sqlalchemy"), importlib.import_module(_OBJECTS)
    stored = importlib.import_module(_TABLES).StoredObject
    new = importlib.import_module(_MESSAGES).ObjectTree
    names = dict.fromkeys(each.object_id for each in objects.iterate_object_tree(tree))
    with store._mutation_session() as database:
        # The objects are looked up one by one, because SQLite limits the number of parameters of a statement.
        references = {
            name: database.scalar(sql.select(stored.ref_count).where(stored.object_id == name))
            for name in names
        }
        root = tree.object_id
        if references.pop(root):
            raise ValueError(f"Object {root} is a part of another message")
        if 0 in references.values():  # otherwise trees could contain each other and grow without limit
            raise ValueError(f"A part of message {root} is a message")
        known = (store.get_object_tree(name) for name, count in references.items() if count)
        unknown = (new(object_id=name) for name, count in references.items() if not count)
        return new(object_id=root, children=[*known, *unknown])


def state_children(store: Any, run: int, tree: Any) -> None:
    """Store the children of a ServerApp's objects that replies have already stored without children.

    Parameters
    ----------
    store : flwr.supercore.object_store.sql_object_store.SqlObjectStore
        The SuperLink's store of objects.
    run : int
        The run's id.
    tree : ObjectTree
        The tree of the ServerApp's message.
    """
    sql, objects = importlib.import_module("sqlalchemy"), importlib.import_module(_OBJECTS)
    tables = importlib.import_module(_TABLES)
    stored, child = tables.StoredObject, tables.ObjectChild
    parents = {each.object_id: each for each in objects.iterate_object_tree(tree) if each.children}
    with store._mutation_session() as database:
        for name, parent in parents.items():  # children first
            has_children = sql.exists().where(child.parent_id == name)
            flat = sql.select(stored.object_id).where(stored.object_id == name, ~has_children)
            if database.scalar(flat) is None:
                continue
            names = [each.object_id for each in parent.children]
            for each in parent.children:
                store.preregister(run, each)
            database.execute(sql.insert(child), [{"parent_id": name, "child_id": each} for each in names])
            count = sql.update(stored).where(stored.object_id.in_(names))
            database.execute(count.values(ref_count=stored.ref_count + 1))
