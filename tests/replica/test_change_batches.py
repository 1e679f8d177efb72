"""Changes are packed into binary values, and divided by key, without loss."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from logicalrep.views import RelationChanges, pack_changes, split_by_key, unpack_changes
from tests.replica.changes_from_rows import from_rows
from tests.replica.simulator import SimulatedServer

KEYS = st.text("ab0", max_size=3)


def changes_of(keys: list[tuple[str, str]], oid: int) -> RelationChanges:
    """Return an insert, update and delete of the row with each key, in turns."""
    server = SimulatedServer(oid, "t", {"k": "text", "l": "text", "v": "text"}, keys=2)
    for number, key in enumerate(keys):
        server.insert(*key, "a")
        if number % 3:
            server.update(len(server.rows) - 1, v="b")
        if number % 2:
            server.delete(len(server.rows) - 1)
    (changes,) = from_rows(server.take().combine_chunks().to_batches()[0])
    return changes


@given(
    keys=st.lists(st.tuples(KEYS, KEYS), min_size=1, max_size=12),
    parts=st.integers(1, 5),
    cut=st.integers(0, 40),
)
def test_all_changes_of_a_key_are_in_one_part(keys: list[tuple[str, str]], parts: int, cut: int) -> None:
    changes = changes_of(keys, 1)
    found: dict[int, list[dict[str, Any]]] = {}
    for batch in (changes.rows.slice(0, cut), changes.rows.slice(cut)):
        for part, divided in split_by_key(changes.with_rows(batch), parts):
            assert 0 <= part < parts
            assert divided.relation == changes.relation
            found.setdefault(part, []).extend(divided.rows.to_pylist())
    part_of: dict[tuple[Any, ...], int] = {}
    for part, taken in found.items():
        positions = [row["position"] for row in taken]
        assert positions == sorted(positions)
        for row in taken:
            values = row["old"] or row["new"]
            assert part_of.setdefault((values["0"], values["1"]), part) == part
    everything = sorted((row for rows in found.values() for row in rows), key=lambda row: row["position"])
    assert everything == changes.rows.to_pylist()


def test_different_keys_are_in_different_parts() -> None:
    changes = changes_of([(str(number), "x") for number in range(300)], 1)
    sizes = [divided.rows.num_rows for _, divided in split_by_key(changes, 4)]
    assert len(sizes) == 4
    assert min(sizes) > changes.rows.num_rows / 8


def test_packed_changes_are_unpacked_without_loss() -> None:
    changes = changes_of([("a", "b"), ("a", "c")], 5)
    assert unpack_changes(pack_changes(changes)) == changes
