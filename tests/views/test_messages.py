"""The view `messages` has all messages, the view `schema` all schema versions."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from logicalrep import messages as m
from logicalrep.errors import RecordingError
from logicalrep.messages import ReplicaIdentity
from logicalrep.recording import RecordingReader
from logicalrep.schemas import arrow as schemas
from logicalrep.views import MESSAGES, SCHEMA, schema_batch
from logicalrep.wire import to_datetime
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.messages import make_column, make_relation
from tests.recording import recordings
from tests.recording.conftest import Recorded
from tests.recording.recordings import record
from tests.views.rows import messages, schema_rows
from tests.views.test_errors import forged

pytestmark = pytest.mark.usefixtures("with_and_without_kernel")


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_rows_are_all_messages(recorded: Recorded, name: str) -> None:
    folder = recorded(name, 151)
    rows = messages(folder)
    with RecordingReader(folder) as segments:
        sent = [(one.record.number, one.message) for one in segments.messages()]
    assert [row["position"] for row in rows] == [position for position, _ in sent]
    assert [row["wal_start"] for row in rows] == [one.wal_start for one in recordings.sent(name)]
    assert {row["received_at"].timestamp() for row in rows} == {
        1 + 151 * n / 1_000_000 for n in range(-(-len(rows) // 151))
    }
    for row, (_, message) in zip(rows, sent, strict=True):
        assert row["type"] == type(message).__name__
        assert row["xid"] == getattr(message, "xid", None)
        for column in ("relation_oid", "oid", "name", "namespace", "gid", "prefix", "content"):
            assert row[column] == getattr(message, column, None)
        for column in ("final_lsn", "commit_lsn", "end_lsn", "prepare_lsn", "abort_lsn"):
            assert row[column] == getattr(message, column, None)
        for column in ("commit_time", "prepare_time", "abort_time"):
            time = getattr(message, column, None)
            assert row[column] == (None if time is None else to_datetime(time))
        for column in ("new", "old", "key"):
            cells = getattr(message, column, None)
            assert (row[column] is None) == (cells is None)
            if cells is not None:
                assert [cell["kind"] for cell in row[column]] == [kind(cell) for cell in cells]
                values = [cell["binary"] if cell["text"] is None else cell["text"] for cell in row[column]]
                assert values == [cell if isinstance(cell, str | bytes) else None for cell in cells]


def kind(cell: object) -> str:
    return {type(None): "n", str: "t", bytes: "b"}.get(type(cell), "u")


def test_values_that_columns_cannot_hold_are_rescued(tmp_path: Path) -> None:
    """Values that their column's Arrow type cannot represent are text in `_rescued_data`."""
    name = make_relation(make_column("\udcff", key=True), namespace="caf\udce9")
    far = 2**62
    record(
        tmp_path,
        m.Begin(final_lsn=5, commit_time=far, xid=1),
        name,
        m.Insert(relation_oid=1, new=("\udcff",)),
        m.Commit(commit_lsn=5, end_lsn=6, commit_time=far),
    )
    begin, relation, insert, _ = messages(tmp_path)
    assert (begin["commit_time"], dict(begin["_rescued_data"])) == (None, {"commit_time": str(far)})
    assert relation["namespace"] is None
    assert dict(relation["_rescued_data"])["namespace"] == '{"text_hex":"636166e9"}'
    assert insert["new"] == [{"kind": "t", "text": None, "binary": b"\xff"}]
    assert MESSAGES.names[:3] == ["position", "wal_start", "received_at"]
    assert MESSAGES.names[3:] == schemas.MESSAGES.names
    assert begin["received_at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_the_first_invalid_message_is_reported(tmp_path: Path) -> None:
    forged(
        tmp_path,
        m.Begin(final_lsn=5, commit_time=0, xid=1),
        b"?",
        b"",
        m.Commit(commit_lsn=5, end_lsn=6, commit_time=0),
    )
    with pytest.raises(RecordingError, match=r"position 1: .*'\?'"):
        messages(tmp_path)


@pytest.mark.parametrize("name", ["pg18_p4_par_2pc", "pg13_ws_p1", "pg18_p1_binary"])
def test_schema_has_each_schema_version(recorded: Recorded, name: str) -> None:
    expected, number = list[tuple[object, ...]](), Counter[int]()
    last: dict[int, object] = {}
    for position, one in enumerate(corpus.read(name)[2]):
        message = one.message
        if isinstance(message, m.Relation):
            same = (message.namespace, message.name, message.replica_identity, message.columns)
            if last.get(message.oid) != same:
                number[message.oid] += 1
                columns = [(c.name, bool(c.flags), c.type_oid, c.type_modifier) for c in message.columns]
                expected.append((position, message.oid, message.name, number[message.oid], columns))
            last[message.oid] = same
    for cut in (40, 10_000):
        found = [
            (
                row["position"],
                row["relation"]["oid"],
                row["relation"]["name"],
                row["version"],
                [(c["name"], c["key"], c["type_oid"], c["type_modifier"]) for c in row["columns"]],
            )
            for row in schema_rows(recorded(name, cut))
        ]
        assert found == expected
    assert max(number.values()) > 3


def test_type_names_in_the_schema_are_as_in_sql(tmp_path: Path) -> None:
    def column(name: str, oid: int, modifier: int = -1) -> m.RelationColumn:
        return make_column(name, oid, modifier)

    columns = (
        column("int4", 23),
        column("int4[]", 1007),
        column("numeric(12,2)", 1700, (12 << 16 | 2) + 4),
        column("numeric(3,-2)", 1700, (3 << 16 | (-2 & 0x7FF)) + 4),
        column("varchar(20)", 1043, 24),
        column("varchar(20)[]", 1015, 24),
        column("bpchar(5)", 1042, 9),
        column("bit(7)", 1560, 7),
        column("timestamptz(3)", 1184, 3),
        column("interval", 1186),
        column("public.mood", 70_000),
        column("text", 70_001),
        column("70002", 70_002),
        column('my "s.x', 70_003),
    )
    types = (
        *(
            m.Type(oid=70_000, namespace="public", name="mood"),
            m.Type(oid=70_001, namespace="pg_catalog", name="text"),
        ),
        m.Type(oid=70_003, namespace='my "s', name="x"),
    )
    record(
        tmp_path,
        *types,
        make_relation(*columns, namespace="", identity=ReplicaIdentity.FULL),
        lsn=77,
    )
    (row,) = schema_rows(tmp_path)
    assert [one["type"] for one in row["columns"]] == [one.name for one in columns]
    assert (row["version"], row["lsn"], row["position"], row["replica_identity"]) == (1, 77, 3, "f")
    assert row["relation"] == {"oid": 1, "namespace": "pg_catalog", "name": "t"}


def test_a_schema_version_begins_only_when_the_relation_changes(tmp_path: Path) -> None:
    """An equal repeated Relation message begins no schema version, even in a new session."""
    one = make_relation(make_column("id", 70_000, key=True), namespace="s")
    other = make_relation(*one.columns, namespace="s", name="renamed")
    mood, humour = (
        m.Type(oid=70_000, namespace="s", name="mood"),
        m.Type(oid=70_000, namespace="s", name="humour"),
    )
    record(tmp_path, mood, one, one, cut=1)
    record(tmp_path, mood, one, humour, one, other, cut=1)
    record(tmp_path, humour, other, one)
    record(tmp_path, m.Type(oid=70_000, namespace="s", name="wit"), one)
    rows = schema_rows(tmp_path)
    found = [(row["version"], row["relation"]["name"], row["columns"][0]["type"]) for row in rows]
    assert found == [(1, "t", "s.mood"), (2, "renamed", "s.humour"), (3, "t", "s.humour"), (4, "t", "s.wit")]


def test_a_recording_without_relations_has_an_empty_schema(tmp_path: Path) -> None:
    record(
        tmp_path, m.Begin(final_lsn=5, commit_time=0, xid=1), m.Commit(commit_lsn=5, end_lsn=6, commit_time=0)
    )
    assert schema_rows(tmp_path) == []
    assert schema_batch([]).schema == SCHEMA
