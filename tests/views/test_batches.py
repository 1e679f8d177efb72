"""Rows of views depend neither on the size of Arrow batches nor on which transactions share a batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from logicalrep import messages as m
from logicalrep.messages import Cell, Message, TupleData
from logicalrep.recording import Recording, SegmentReader
from logicalrep.views import (
    CHANGES,
    ChangesView,
    TableView,
    View,
    plan_changes,
    row_type,
    table_schema,
)
from logicalrep.wire import UNCHANGED
from tests.messages import STOP, make_column, make_relation, start_block
from tests.recording.recordings import record
from tests.views.rows import Row, changes, expected_changes, rows_of, schemas, table, without

pytestmark = pytest.mark.usefixtures("with_and_without_kernel")

TEXT, INT4, BYTEA = 25, 23, 17
TYPES = TEXT, INT4, BYTEA, 70_000
VALUES: dict[int, list[Cell]] = {
    TEXT: ["", "é", "caf\udce9", b"b", b"\xff", None],
    INT4: ["7", "-1", b"\0\0\0\5", None, "no number"],
    BYTEA: ["\\x00ff", b"\0\xff", None],
    70_000: ["happy", b"sad", b"\xff", None],
}


class Stream:
    """A generator of random small transactions on several tables whose schemas change."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._relations: dict[int, m.Relation] = {}

    def messages(self, transactions: int) -> Iterator[Message]:
        for number in range(transactions):
            lsn = 100 * (number + 1)
            if self._random.random() < 0.2:
                yield from self._streamed(lsn, number)
                continue
            yield m.Begin(final_lsn=lsn, commit_time=number, xid=700 + number)
            yield from self._changes(None)
            yield m.Commit(commit_lsn=lsn, end_lsn=lsn + 1, commit_time=number)

    def _streamed(self, lsn: int, number: int) -> Iterator[Message]:
        """Yield a streamed transaction; a savepoint or the whole transaction may be rolled back."""
        xid = 700 + number
        for block in range(2):
            yield start_block(xid, first=not block)
            yield from self._changes(xid)
            yield from self._changes(xid + 10_000)
            yield STOP
        if self._random.random() < 0.7:
            yield m.StreamAbort(xid=xid, subxid=xid + 10_000, abort_lsn=lsn, abort_time=number)
        if self._random.random() < 0.3:
            yield m.StreamAbort(xid=xid, subxid=xid, abort_lsn=lsn, abort_time=number)
        else:
            yield m.StreamCommit(xid=xid, commit_lsn=lsn, end_lsn=lsn + 1, commit_time=number)

    def _changes(self, xid: int | None) -> Iterator[Message]:
        for _ in range(self._random.choice((0, 1, 2, 2, 5))):
            oid = self._random.randrange(1, 9)
            if oid not in self._relations or self._random.random() < 0.1:
                self._relations[oid] = self._relation(oid)
                yield replace(self._relations[oid], xid=xid)
            yield self._change(self._relations[oid], xid)

    def _relation(self, oid: int) -> m.Relation:
        types = self._random.choices(TYPES, k=self._random.randrange(5))
        columns = (
            make_column(f"c{place}", type_, key=self._random.random() < 0.5)
            for place, type_ in enumerate(types)
        )
        return make_relation(*columns, oid=oid, name=f"t{oid}")

    def _change(self, relation: m.Relation, xid: int | None) -> Message:
        oid, (new, old) = relation.oid, (self._row(relation) for _ in range(2))
        sent = tuple(UNCHANGED if self._random.random() < 0.2 else cell for cell in new)
        flags = [column.flags for column in relation.columns]
        key = tuple(cell if is_key else None for cell, is_key in zip(old, flags, strict=True))
        known = [one for one in self._relations if one != oid]
        return self._random.choice(
            [
                m.Insert(relation_oid=oid, new=new, xid=xid),
                m.Update(relation_oid=oid, new=sent, xid=xid),
                m.Update(relation_oid=oid, new=sent, key=key, xid=xid),
                m.Update(relation_oid=oid, new=sent, old=old, xid=xid),
                m.Delete(relation_oid=oid, key=key, xid=xid),
                m.Delete(relation_oid=oid, old=old, xid=xid),
                m.Truncate(options=m.TruncateOption(0), relation_oids=(oid, *known[:2]), xid=xid),
            ]
        )

    def _row(self, relation: m.Relation) -> TupleData:
        return tuple(self._random.choice(VALUES[column.type_oid]) for column in relation.columns)


def in_batches(folder: Path, size: int, name: str | None = None) -> list[Row]:
    """Return the rows of the view `changes` or `table`, read in batches of `size` messages."""
    recording, found = Recording(folder), list[Row]()
    schema = CHANGES
    if name is not None:
        of_name = (one for of_oid in schemas(folder).values() for one in of_oid if one.name == name)
        schema = table_schema(row_type(of_name))
    for task in plan_changes(recording, recording.numbers):
        with SegmentReader(task.place) as segment:
            view: View = ChangesView(segment, task, lambda relation: name in (None, relation.name))
            if name is not None:
                view = TableView(segment, task, lambda relation: relation.name == name, schema)
            batches = [
                view.convert(batch.slice(start, size))
                for batch in segment.batches()
                for start in range(0, len(batch), size)
            ]
        found += rows_of(batches, schema)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_random_streams_give_the_expected_changes(tmp_path: Path, seed: int) -> None:
    record(tmp_path, *Stream(seed).messages(60), cut=150)
    expected = [one.row for one in expected_changes(tmp_path)]
    assert len(expected) > 50
    in_order = sorted(changes(tmp_path), key=lambda row: (row["commit_lsn"], row["position"]))
    assert [without(row, "position", "sequence") for row in in_order] == expected
    for size in (1, 7):
        assert in_batches(tmp_path, size) == changes(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_random_streams_give_equal_rows_in_table_and_changes(tmp_path: Path, seed: int) -> None:
    """The view `table` has the same values as the view `changes`, whatever the batch size."""
    record(tmp_path, *Stream(seed).messages(60), cut=150)
    for name in ("t1", "t5"):
        typed = in_batches(tmp_path, 10_000, name)
        assert in_batches(tmp_path, 1, name) == in_batches(tmp_path, 9, name) == typed
        texts = changes(tmp_path, wanted=lambda relation: relation.name == name)  # noqa: B023
        assert len(texts) == len(typed) > 3
        for row, text in zip(typed, texts, strict=True):
            for image in ("before", "after"):
                columns, texts_of = (dict(one[image] or ()) for one in (row, text))
                lost = [key for key, one in texts_of.items() if one and one.startswith("\0")]
                assert [columns[key] for key in lost] == [None] * len(lost)
                assert shown(row[image]) == shown(text[image])
        assert len(table(tmp_path, name)) == len(typed)


def shown(image: object) -> dict[str, str] | None:
    """Return the non-NULL values of a row as text, and those without valid text as hex."""
    if image is None:
        return None
    assert isinstance(image, dict | list)
    pairs = dict(image)
    pairs |= dict(pairs.pop("_rescued_data", None) or ())
    texts = {name: f"\\x{one.hex()}" if isinstance(one, bytes) else one for name, one in pairs.items()}
    return {name: str(one).removeprefix("\0") for name, one in texts.items() if one is not None}


def test_a_relation_can_change_inside_a_batch(tmp_path: Path) -> None:
    """Each change has the columns of the table's schema version at that change."""
    one, other = (make_relation(*columns(*names), namespace="s") for names in ("ab", "c"))
    beside = make_relation(*columns("x"), oid=2, namespace="s", name="u")
    record(
        tmp_path,
        *(
            m.Begin(final_lsn=1, commit_time=0, xid=7),
            one,
            beside,
            m.Insert(relation_oid=1, new=("1", "2")),
            m.Insert(relation_oid=2, new=("3",)),
            other,
        ),
        *(
            m.Insert(relation_oid=2, new=("4",)),
            m.Insert(relation_oid=1, new=("5",)),
            one,
            m.Insert(relation_oid=1, new=("6", "7")),
            m.Commit(commit_lsn=1, end_lsn=2, commit_time=0),
        ),
    )
    assert [row["after"] for row in changes(tmp_path)] == [
        [("a", "1"), ("b", "2")],
        [("x", "3")],
        [("x", "4")],
        [("c", "5")],
        [("a", "6"), ("b", "7")],
    ]
    rows = [
        {k: v for k, v in row.items() if v is not None} for row in table(tmp_path, "t")["after"].to_pylist()
    ]
    assert rows == [{"a": "1", "b": "2"}, {"c": "5"}, {"a": "6", "b": "7"}]


def test_two_tables_of_one_name_can_be_in_a_batch(tmp_path: Path) -> None:
    """Relations with different OIDs have the same name if a streamed transaction recreates the table."""
    described = [make_relation(*columns("a", f"b{oid}"), oid=oid, namespace="s") for oid in (1, 2, 3)]
    order = [3, 1, 2, 2, 3, 1, 1, 3, 2]
    inserts = [m.Insert(relation_oid=oid, new=(str(place), "x")) for place, oid in enumerate(order)]
    record(
        tmp_path,
        m.Begin(final_lsn=1, commit_time=0, xid=7),
        *described,
        *inserts,
        m.Commit(commit_lsn=1, end_lsn=2, commit_time=0),
    )
    rows = table(tmp_path, "t")["after"].to_pylist()
    assert list(map(shown, rows)) == [{"a": str(place), f"b{oid}": "x"} for place, oid in enumerate(order)]


def columns(*names: str) -> tuple[m.RelationColumn, ...]:
    return tuple(make_column(name, TEXT) for name in names)
