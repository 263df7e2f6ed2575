"""The store with few statements keeps the same objects as Flower's own store, and refuses the same."""

import random

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from deploy.fleet.admission import object_trees
from deploy.fleet.storage import objects
from deploy.fleet.storage.objects import CohortObjectStore
from deploy.fleet.storage.shared_state import SharedStore

RUN = 2**64 - 1  # the largest id of a run


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request, tmp_path):
    found = [SqlObjectStore(":memory:")]
    if request.param == "sqlite":
        found.append(CohortObjectStore(str(tmp_path / "database")))
    else:
        found.append(SharedStore(request.getfixturevalue("postgres").database()))
    for each in found:
        each.initialize()
    return found


def content(number):
    return b"ArrayChunk  4\x00" + number.to_bytes(4, "big")


def name(number):
    return get_object_id(content(number))


def tree(number, children):
    return ObjectTree(object_id=name(number), children=children)


def shape(found):
    return found.object_id, sorted(map(shape, found.children), key=str)


def state(store, numbers):
    """Return all that the store knows about some objects."""
    known = [len(store)]
    for number in numbers:
        counted = store.query("SELECT ref_count FROM objects WHERE object_id = :id", {"id": name(number)})
        known += [store.get(name(number)), [row["ref_count"] for row in counted]]
        if name(number) in store:
            known.append(shape(store.get_object_tree(name(number))))
        else:
            with pytest.raises(NoObjectInStoreError):
                store.get_object_tree(name(number))
    known.append(store.query("SELECT count(*) AS n FROM run_objects")[0]["n"])
    known.append(store.query("SELECT count(*) AS n FROM object_children")[0]["n"])
    return known


@pytest.mark.parametrize("seed", range(2))
def test_trees_that_share_objects_are_stored_and_deleted_as_in_flower(stores, seed):
    chance = random.Random(seed)
    # Objects with a greater number contain objects with smaller numbers, so each object has fixed children.
    trees = [tree(number, []) for number in range(4)]
    for number in range(4, 12):
        trees.append(tree(number, chance.sample(trees[-4:], chance.randint(1, 3))))
    for _ in range(20):
        action, number = chance.choice(("preregister", "put", "delete")), chance.randrange(12)
        results = []
        for store in stores:
            if action == "preregister":
                results.append(set(store.preregister(RUN, trees[number])))
            elif action == "delete":
                store.delete(name(number))
            elif name(number) in store:
                store.put(name(number), content(number))
            else:
                with pytest.raises(NoObjectInStoreError):
                    store.put(name(number), content(number))
        assert results[:1] == results[1:]
        assert state(stores[0], range(12)) == state(stores[1], range(12))


def test_other_children_the_same_child_twice_and_false_names_are_refused(stores):
    for store in stores:
        store.preregister(RUN, tree(2, [tree(0, [])]))
        for wrong in (
            tree(2, [tree(1, [])]),
            tree(2, []),
            tree(3, [tree(1, []), tree(1, [])]),
            ObjectTree(object_id="x"),
        ):
            with pytest.raises(ValueError, match=r"children|Invalid object ID"):
                store.preregister(RUN, wrong)
        assert len(store) == 2  # a refused tree leaves nothing
        for text in (content(1), b"no object"):
            with pytest.raises(ValueError, match="hash"):
                store.put(name(0), text)


def test_a_deep_and_wide_tree_takes_few_statements(stores, monkeypatch):
    store = stores[1]
    leaves = [tree(number, []) for number in range(2000)]  # more than a statement may have parameters
    whole = tree(2001, [tree(2000, leaves)])
    statements = []
    executor = objects.executor

    def counting(session):
        def execute(statement, values=()):
            statements.append(statement)
            return executor(session)(statement, values)

        return execute

    monkeypatch.setattr(objects, "executor", counting)
    monkeypatch.setattr(object_trees, "executor", counting)
    assert len(store.preregister(RUN, whole)) == 2002
    assert shape(store.get_object_tree(name(2001))) == shape(whole)
    store.delete(name(2001))
    assert len(store) == 0
    assert 5 < len(statements) < 30
