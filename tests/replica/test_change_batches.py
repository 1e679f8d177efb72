"""Changes are packed into binary values, and divided by key, without loss."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, strategies as st

from pgoutput.replica.change_batches import pack_by_relation, split_by_key, unpack_changes
from pgoutput.views import CHANGES
from tests.replica.simulator import SimulatedServer

KEYS = st.text("ab0", max_size=3)


def changes_of(keys: list[tuple[str, str]], oid: int) -> pa.RecordBatch:
    """Return an insert, update and delete of the row with each key, in turns."""
    server = SimulatedServer(oid, "t", {"k": "text", "l": "text", "v": "text"}, keys=2)
    for number, key in enumerate(keys):
        server.insert(*key, "a")
        if number % 3:
            server.update(len(server.rows) - 1, v="b")
        if number % 2:
            server.delete(len(server.rows) - 1)
    return server.take().combine_chunks().to_batches()[0]


@given(
    keys=st.lists(st.tuples(KEYS, KEYS), min_size=1, max_size=12),
    parts=st.integers(1, 5),
    cut=st.integers(0, 40),
)
def test_all_changes_of_a_key_are_in_one_part(keys: list[tuple[str, str]], parts: int, cut: int) -> None:
    changes = changes_of(keys, 1)
    found: dict[int, list[dict[str, Any]]] = {}
    for batch in (changes.slice(0, cut), changes.slice(cut)):
        for part, rows in split_by_key(batch, parts) if batch.num_rows else ():
            assert 0 <= part < parts
            found.setdefault(part, []).extend(rows.to_pylist())
    part_of: dict[tuple[Any, ...], int] = {}
    for part, divided in found.items():
        positions = [row["position"] for row in divided]
        assert positions == sorted(positions)
        for row in divided:
            values = dict(row["before"] or row["after"])
            assert part_of.setdefault((values["k"], values["l"]), part) == part
    everything = sorted((row for rows in found.values() for row in rows), key=lambda row: row["position"])
    assert everything == changes.to_pylist()


def test_different_keys_are_in_different_parts() -> None:
    changes = changes_of([(str(number), "x") for number in range(300)], 1)
    sizes = [rows.num_rows for _, rows in split_by_key(changes, 4)]
    assert len(sizes) == 4
    assert min(sizes) > changes.num_rows / 8


def test_each_relation_is_packed_by_itself() -> None:
    first, second = (changes_of([("a", "b"), ("a", "c")], oid) for oid in (5, 7))
    mixed = pa.concat_batches([first, second]).take(pa.array([0, 4, 1, 5, 2, 6, 3, 7]))
    packed = pack_by_relation(mixed)
    assert packed["oid"].to_pylist() == [5, 7]
    unpacked = [unpack_changes(data) for data in packed["data"].to_pylist()]
    assert [one.schema for one in unpacked] == [CHANGES, CHANGES]
    assert unpacked[0].equals(mixed.take(pa.array([0, 2, 4, 6])))
    assert unpacked[1].equals(mixed.take(pa.array([1, 3, 5, 7])))
    assert pack_by_relation(mixed.slice(0, 0)).num_rows == 0
