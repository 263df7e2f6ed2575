"""The SuperLink's store of objects, which stores, looks up and deletes objects with a few statements.

Flower splits a message into a tree of objects: the message, its records, their arrays, and so on. The name of
an object (`object_id`) is the hash of its content. A sender first sends the tree with all names, and then
pushes the contents one by one, in a push session.

A reply with a model of four arrays has 13 objects. Stock Flower stores and deletes them with several
statements for each object, which took most of the SuperLink's CPU time. Here one statement serves all objects
of a message. The statement gets the list of objects as JSON, because SQLite limits the number of parameters.
The statements are fixed texts, because SQLAlchemy's ORM takes longer to build a statement than SQLite to
execute it.

When an object is deleted, SQLite also deletes the rows of other tables that refer to the object. Stock Flower
has no index of these rows, so each deletion reads two whole tables. `CohortObjectStore` adds the indexes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from deploy.fleet import protocol
from deploy.fleet.admission import object_trees
from deploy.fleet.storage.statements import AMONG, executor, listed
from deploy.fleet.storage.transactions import TakesTurns

_INDEXES = (
    "CREATE INDEX IF NOT EXISTS cohort_parents ON object_children (child_id)",
    "CREATE INDEX IF NOT EXISTS cohort_runs ON run_objects (object_id)",
)
_KNOWN = f"SELECT object_id, is_available FROM objects WHERE object_id {AMONG}"
_CHILDREN = f"SELECT parent_id, child_id FROM object_children WHERE parent_id {AMONG}"
_ADD = "INSERT INTO objects (object_id, content, is_available, ref_count) VALUES (?, x'', 0, ?)"
_ADD_CHILD = "INSERT INTO object_children (parent_id, child_id) VALUES (?, ?)"
_COUNT = "UPDATE objects SET ref_count = ref_count + ? WHERE object_id = ?"
_ADD_TO_RUN = "INSERT INTO run_objects (run_id, object_id) VALUES (?, ?) ON CONFLICT DO NOTHING"
_EXISTS = "SELECT 1 FROM objects WHERE object_id = ?"
_IS_UNUSED = "SELECT 1 FROM objects WHERE object_id = ? AND ref_count = 0"
_REFERENCES = (
    "WITH RECURSIVE part (id) AS "
    "(VALUES (CAST(? AS VARCHAR)) UNION SELECT child_id FROM object_children JOIN part ON parent_id = id) "
    "SELECT parent_id, child_id, ref_count FROM part JOIN object_children ON parent_id = id "
    "JOIN objects ON object_id = child_id"
)
_DELETE = f"DELETE FROM objects WHERE object_id {AMONG}"
_SET_COUNT = "UPDATE objects SET ref_count = ? WHERE object_id = ?"
_GET = "SELECT content FROM objects WHERE object_id = ?"
_PUT = "UPDATE objects SET content = ?, is_available = 1 WHERE object_id = ? AND is_available = 0"


class CohortObjectStore(TakesTurns, SqlObjectStore):
    """Flower's store of objects with fewer statements. It stores, returns and refuses the same objects."""

    def initialize(self, log_queries: bool = False, **engine_kwargs: Any) -> list[str]:
        """Connect to the database, and add the indexes."""
        tables = super().initialize(log_queries, **engine_kwargs)
        with self.alone() as session:
            for each in _INDEXES:
                executor(session)(each)
        return tables

    def check(self, object_id: str, object_content: bytes) -> None:
        """Raise ValueError if an object's name is not its content's hash, or the content has no head."""
        if self.verify:
            if object_id != protocol.name_of(object_content):
                raise ValueError(f"Object ID {object_id} does not match content hash")
            protocol.head(object_content)

    def put(self, object_id: str, object_content: bytes) -> None:
        """Store the content of an object whose name is already stored."""
        self.check(object_id, object_content)
        with self.session() as session:
            execute = executor(session)
            if execute(_PUT, (object_content, object_id)).rowcount:
                return
            if execute(_EXISTS, (object_id,)).first() is None:
                raise _unknown(object_id)

    def get(self, object_id: str) -> bytes | None:
        """Return the content of an object: b"" if it has not arrived, None if its name is not stored."""
        with self.session() as session:
            content: bytes | None = executor(session)(_GET, (object_id,)).scalar()
            return content

    def put_checked(self, contents: Mapping[str, bytes]) -> None:
        """Store the contents, which `check` accepts, of objects whose names are already stored."""
        with self.session() as session:
            executor(session)(_PUT, [(contents[name], name) for name in sorted(contents)])

    def first(self, names: Sequence[str], most: int) -> list[bytes]:
        """Return the contents of the first of these objects, up to one that has not arrived, or `most` bytes.

        Only the last one may exceed `most` bytes.
        """
        with self.session() as session:
            sizes = object_trees.sizes(session, names)
            wanted: list[str] = []
            for name in names:
                if most <= 0 or not sizes.get(name):
                    break
                wanted.append(name)
                most -= sizes[name]
            found = object_trees.contents(session, wanted)
        return [found[name] for name in wanted]

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Store the names and children of a message's objects. Return the names without contents."""
        children: dict[str, set[str]] = {}
        for node in protocol.each_object(object_tree):
            name = node.object_id
            if not protocol.is_name(name):
                raise ValueError(f"Invalid object ID format: {name}")
            parts = {child.object_id for child in node.children}
            if len(parts) != len(node.children):
                raise ValueError(f"Object {name} has duplicate children.")
            if children.setdefault(name, parts) != parts:
                raise ValueError(f"Object {name} was preregistered with different children.")
        names = listed(children)
        with self.alone() as session:
            execute = executor(session)
            known: dict[str, int] = dict(execute(_KNOWN, (names,)).all())
            stated: dict[str, set[str]] = {name: set() for name in known}
            for parent, child in execute(_CHILDREN, (names,)) if known else ():
                stated[parent].add(child)
            for name, parts in stated.items():
                if parts != children[name]:
                    raise ValueError(f"Object {name} was preregistered with different children.")
            new = {name: parts for name, parts in children.items() if name not in known}
            references = dict.fromkeys(children, 0)
            for parts in new.values():
                for part in parts:
                    references[part] += 1
            if new:
                execute(_ADD, [(name, references.pop(name)) for name in new])
            if pairs := [(name, part) for name, parts in new.items() for part in sorted(parts)]:
                execute(_ADD_CHILD, pairs)
            if counts := [(count, name) for name, count in references.items() if count]:
                execute(_COUNT, counts)
            run = protocol.signed(run_id)
            execute(_ADD_TO_RUN, [(run, name) for name in children])
        return [name for name in children if not known.get(name)]

    def get_object_tree(self, object_id: str) -> ObjectTree:
        """Return an object with its descendants."""
        if (tree := self.tree_of(object_id)) is None:
            raise _unknown(object_id)
        return tree

    def tree_of(self, object_id: str) -> ObjectTree | None:
        """Return an object with its descendants; None if its name is not stored."""
        with self.session() as session:
            if executor(session)(_EXISTS, (object_id,)).first() is None:
                return None
            trees: list[ObjectTree] = object_trees.stored_trees(session, [object_id])
        return trees[0]

    def delete(self, object_id: str) -> None:
        """Delete an object, and those of its descendants that no remaining object contains.

        An object that is itself a child of another object is not deleted.
        """
        with self.alone() as session:
            execute = executor(session)
            if execute(_IS_UNUSED, (object_id,)).first() is None:
                return
            references: dict[str, int] = {}  # by object: how many stored objects have it as a child
            children: dict[str, list[str]] = {}
            for parent, child, count in execute(_REFERENCES, (object_id,)):
                references[child] = count
                children.setdefault(parent, []).append(child)
            gone = [object_id]
            for name in gone:  # grows in the loop
                for child in children.get(name, ()):
                    references[child] -= 1
                    if references[child] == 0:
                        gone.append(child)
            execute(_DELETE, (listed(gone),))
            if kept := [(count, name) for name, count in references.items() if count]:
                execute(_SET_COUNT, kept)


def _unknown(object_id: str) -> NoObjectInStoreError:
    return NoObjectInStoreError(f"Object {object_id} was not pre-registered.")
