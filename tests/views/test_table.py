"""The view `table` has the server's rows as typed values, equal for text and binary format."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from logicalrep import compiled, messages as m
from logicalrep.messages import Cell, Message, ReplicaIdentity, TupleData
from logicalrep.recording import Recording, SegmentReader
from logicalrep.views import RESCUED, TableView, plan_changes, read, row_type, table_schema
from logicalrep.wire import UNCHANGED
from tests.codec import corpus
from tests.codec.test_replay import TEXT_CAPTURES, truth
from tests.effort import mostly_nightly
from tests.messages import make_column, make_relation
from tests.recording.conftest import Recorded
from tests.recording.recordings import record
from tests.truth import equals_typed
from tests.values.test_captures import PAIRS, incomparable
from tests.views.rows import Row, changes, replay, schemas, sorted_table, table

pytestmark = pytest.mark.usefixtures("with_and_without_kernel")

INT2, INT4, INT8, NUMERIC, TEXT = 21, 23, 20, 1700, 25
FLOAT4, FLOAT8, DATE = 700, 701, 1082


def tables(folder: Path) -> dict[int, pa.Table]:
    """Return the rows of the view `table` for each table of a recording, by OID, sorted by `sequence`."""
    return _tables(folder, compiled.kernel is None)


@cache
def _tables(folder: Path, pure: bool) -> dict[int, pa.Table]:
    found = {}
    recording = Recording(folder)
    tasks = plan_changes(recording, recording.numbers)
    by_oid = {oid: table_schema(row_type(of_oid)) for oid, of_oid in schemas(folder).items()}
    batches: dict[int, list[pa.RecordBatch]] = {oid: [] for oid in by_oid}
    for task in tasks:
        with SegmentReader(task.place) as segment:
            for oid, schema in by_oid.items():
                view = TableView(segment, task, lambda relation: relation.relation.oid == oid, schema)  # noqa: B023
                batches[oid] += read(segment, view)
    for oid, schema in by_oid.items():
        found[oid] = sorted_table(batches[oid], schema)
    return found


def images(rows: pa.Table) -> list[Row]:
    return [dict(row) for row in rows.to_pylist()]


@pytest.mark.parametrize("name", mostly_nightly(TEXT_CAPTURES, corpus.VARIED))
def test_replayed_rows_equal_the_servers_tables(recorded: Recorded, name: str) -> None:
    folder = recorded(name, 10_000)
    of_oid, last = tables(folder), {oid: of_one[-1] for oid, of_one in schemas(folder).items()}
    compared = 0
    for wanted in truth(name.split("_")[0]):
        rows = of_oid.get(wanted.oid)
        if rows is None or not len(rows):
            assert wanted.rows == [], wanted.name
            continue
        columns = [*last[wanted.oid].names, rows.schema.field("after").type[-1].name]
        type_ = rows.schema.field("after").type
        schema = pa.schema([type_.field(column) for column in columns])
        there = [{column: row[column] for column in columns} for row in replay(images(rows))]
        found = pa.Table.from_pylist(there, schema)
        assert equals_typed(wanted, found.rename_columns([*columns[:-1], RESCUED])), wanted.name
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("name", PAIRS)
def test_text_and_binary_give_equal_rows(recorded: Recorded, name: str) -> None:
    binary, text = (tables(recorded(one, 10_000)) for one in (name, PAIRS[name]))
    assert binary.keys() == text.keys()
    compared = 0
    for oid, of_binary in binary.items():
        of_text = text[oid]
        assert of_binary.schema == of_text.schema
        assert len(of_binary) == len(of_text)
        for one, other in zip(images(of_binary), images(of_text), strict=True):
            assert comparable(one, name) == comparable(other, name)
            compared += 1
    assert compared > 200


def comparable(row: Row, capture: str = "") -> str:
    """Return the row as text, without values that differ between captures or that the binary one lacks."""
    table = row["relation"]["name"]
    names = {name for one, _, name in (key.partition(".") for key in incomparable(capture)) if one == table}
    row = {column: value for column, value in row.items() if column not in ("position", "sequence")}
    for image in ("before", "after"):
        if row[image] is not None:
            cells = row[image] = {k: v for k, v in row[image].items() if k not in names}
            rescued = cells.pop(RESCUED) or []
            cells[RESCUED] = sorted(pair for pair in rescued if pair[0] not in names) or None
    return repr(row)  # NaN is not equal to itself


@pytest.mark.parametrize("name", ["pg18_ws_p4_par_2pc_msg", "pg13_ws_p1"])
def test_rows_do_not_depend_on_segments(recorded: Recorded, name: str) -> None:
    whole, parts = tables(recorded(name, 10_000)), recorded(name, 40)
    by_name = {rows["relation"][0]["name"].as_py(): rows for rows in whole.values() if len(rows)}
    for one in ("strm", "t_num", "t_toast"):
        assert repr(images(table(parts, one))) == repr(images(by_name[one]))  # NaN is not equal to itself


# Composed streams


def relation(oid: int, *columns: tuple[str, int], keys: int = 1, namespace: str = "public") -> m.Relation:
    """Return the Relation message of a table `t` whose first `keys` columns are the replica identity."""
    described = (make_column(name, type_, key=place < keys) for place, (name, type_) in enumerate(columns))
    return make_relation(*described, oid=oid, namespace=namespace)


def transaction(lsn: int, *messages: Message) -> list[Message]:
    return [
        m.Begin(final_lsn=lsn, commit_time=0, xid=lsn),
        *messages,
        m.Commit(commit_lsn=lsn, end_lsn=lsn + 5, commit_time=0),
    ]


def after(rows: pa.Table) -> list[Row | None]:
    return [
        None if row is None else {k: v for k, v in row.items() if v is not None}
        for row in rows["after"].to_pylist()
    ]


def test_a_changed_schema_has_all_columns_and_wider_types(tmp_path: Path) -> None:
    """The rows have all columns that the table ever had, with Arrow types that can represent all values."""
    first = relation(1, ("id", INT2), ("a", FLOAT4), ("b", TEXT), ("c", INT4), ("e", INT8))
    second = relation(1, ("b", TEXT), ("id", INT8), ("a", FLOAT8), ("d", DATE), ("c", NUMERIC), ("e", INT2))
    record(
        tmp_path,
        *transaction(10, first, m.Insert(relation_oid=1, new=("1", "1.5", "x", "7", "8589934592"))),
        *transaction(20, second, m.Insert(relation_oid=1, new=("y", "2", "0.1", "2024-02-29", "8.25", None))),
        *transaction(30, m.Update(relation_oid=1, new=("y", UNCHANGED, None, "infinity", "9", None))),
        cut=3,
    )
    rows = table(tmp_path, "t")
    assert rows.schema.field("after").type == rows.schema.field("before").type
    assert not rows.schema.field("unchanged").type.value_field.nullable
    assert {field.name: field.type for field in rows.schema.field("after").type} == {
        "id": pa.int64(),
        "a": pa.float64(),
        "b": pa.string(),
        "c": pa.string(),  # numeric without precision
        "e": pa.int64(),
        "d": pa.date32(),
        RESCUED: pa.map_(pa.string(), pa.string()),
    }
    one, two, three = after(rows)
    assert one == {"id": 1, "a": 1.5, "b": "x", "c": "7", "e": 2**33}
    assert two is not None
    assert (two["id"], two["a"], two["b"], str(two["d"]), two["c"]) == (2, 0.1, "y", "2024-02-29", "8.25")
    assert three == {"b": "y", "c": "9", RESCUED: [("d", "infinity")]}
    assert rows["unchanged"].to_pylist() == [[], [], ["id"]]
    assert rows["key_columns"].to_pylist() == [["id"], ["b"], ["b"]]


def test_values_of_columns_missing_in_the_schema_are_rescued(tmp_path: Path) -> None:
    """A query keeps the schema from its start; values of columns added later are rescued as text."""
    first = relation(1, ("id", INT4), ("a", INT2))
    second = relation(1, ("id", INT4), ("a", TEXT), ("b", TEXT), ("c", INT4))
    record(
        tmp_path,
        *transaction(10, first, m.Insert(relation_oid=1, new=("1", "1"))),
        *transaction(
            20,
            second,
            m.Insert(relation_oid=1, new=("2", "2", "b", None)),
            m.Insert(relation_oid=1, new=(b"\0\0\0\3", "x", UNCHANGED, b"\0\0\0\4")),
        ),
    )
    schema = table_schema(row_type(schemas(tmp_path)[1][:1]))
    rows = table(tmp_path, "t", schema)
    assert rows.schema == schema
    assert after(rows) == [
        {"id": 1, "a": 1},
        {"id": 2, "a": 2, RESCUED: [("b", "b")]},
        {"id": 3, RESCUED: [("a", "x"), ("c", "4")]},
    ]


def test_columns_that_the_table_lacks_are_null(tmp_path: Path) -> None:
    """Columns of the requested schema that no schema version of the table has are NULL."""
    record(tmp_path, *transaction(10, relation(1, ("id", INT4)), m.Insert(relation_oid=1, new=("1",))))
    more = pa.struct(
        [("later", pa.int32()), ("id", pa.int32()), (RESCUED, pa.map_(pa.string(), pa.string()))]
    )
    assert after(table(tmp_path, "t", table_schema(more))) == [{"id": 1}]


def test_old_rows_follow_the_replica_identity(tmp_path: Path) -> None:
    """`before` has the key tuple, the whole old row with REPLICA IDENTITY FULL, or NULL."""
    keyed = relation(1, ("a", TEXT), ("id", INT4), ("b", TEXT), keys=2)
    full = msgspec.structs.replace(keyed, oid=2, replica_identity=ReplicaIdentity.FULL)
    new: TupleData = ("n", "2", "x")
    record(
        tmp_path,
        *transaction(
            10,
            *(
                keyed,
                full,
                m.Insert(relation_oid=1, new=new),
                m.Update(relation_oid=1, new=new),
                m.Update(relation_oid=1, new=new, key=("o", "1", None)),
            ),
            *(
                m.Delete(relation_oid=1, key=("n", "2", None)),
                m.Update(relation_oid=2, new=new, old=("o", "1", None)),
                m.Delete(relation_oid=2, old=new),
            ),
            m.Truncate(options=m.TruncateOption(0), relation_oids=(2, 1)),
        ),
    )
    rows = table(tmp_path, "t")
    key, old = {"a": "o", "id": 1}, {"a": "o", "id": 1}
    gone = {"a": "n", "id": 2}
    before = [row and {k: v for k, v in row.items() if v is not None} for row in rows["before"].to_pylist()]
    assert before == [None, None, key, gone, old, gone | {"b": "x"}, None, None]
    assert [one is None for one in after(rows)] == [False, False, False, True, False, True, True, True]
    assert rows["operation"].to_pylist()[-2:] == ["Truncate", "Truncate"]
    assert [one["oid"] for one in rows["relation"].to_pylist()[-2:]] == [2, 1]
    texts = [row["before"] for row in changes(tmp_path)]
    assert texts[2:5] == [
        [("a", "o"), ("id", "1")],
        [("a", "n"), ("id", "2")],
        [("a", "o"), ("id", "1"), ("b", None)],
    ]


WILD = ["a.b", "A.B", "`", '"', " ", "/", "é", "", RESCUED, f"{RESCUED}_", "operation", "caf\udce9", "x\ty'"]


def test_any_column_name_is_possible(tmp_path: Path) -> None:
    described = relation(1, *((name, TEXT) for name in WILD))
    record(tmp_path, *transaction(10, described, m.Insert(relation_oid=1, new=tuple(WILD))))
    shown = ["caf\\xe9" if name == "caf\udce9" else name for name in WILD]
    (row,) = table(tmp_path, "t")["after"].to_pylist()
    texts = dict(zip(shown, WILD, strict=True)) | {"caf\\xe9": None}
    assert row == texts | {f"{RESCUED}__": [("caf\\xe9", "\\x636166e9")]}
    (change,) = changes(tmp_path)
    texts["caf\\xe9"] = "\0\\x636166e9"
    assert change["after"] == [*texts.items()]
    assert change["key_columns"] == shown[:1]


def test_table_names_are_shown_with_their_namespace(tmp_path: Path) -> None:
    wild = 'sch"e.ma \udcff', 'T "\udce9.é'
    described = msgspec.structs.replace(relation(1, ("x", TEXT)), namespace=wild[0], name=wild[1])
    system = relation(2, ("x", TEXT), namespace="")
    record(
        tmp_path,
        *transaction(
            10, described, system, m.Insert(relation_oid=1, new=("1",)), m.Insert(relation_oid=2, new=("2",))
        ),
    )
    assert [row["relation"] for row in changes(tmp_path)] == [
        {"oid": 1, "namespace": 'sch"e.ma \\xff', "name": 'T "\\xe9.é'},
        {"oid": 2, "namespace": "pg_catalog", "name": "t"},
    ]


def test_a_table_without_columns_has_rows(tmp_path: Path) -> None:
    none = msgspec.structs.replace(relation(1), replica_identity=ReplicaIdentity.FULL)
    record(
        tmp_path,
        *transaction(
            10,
            none,
            m.Insert(relation_oid=1, new=()),
            m.Update(relation_oid=1, new=(), old=()),
            m.Delete(relation_oid=1, old=()),
        ),
    )
    rows = table(tmp_path, "t")
    assert rows["after"].to_pylist() == [{RESCUED: None}, {RESCUED: None}, None]
    assert rows["before"].to_pylist() == [None, {RESCUED: None}, {RESCUED: None}]
    assert [(row["before"], row["after"]) for row in changes(tmp_path)] == [(None, []), ([], []), ([], None)]


def test_a_column_can_mix_text_and_binary(tmp_path: Path) -> None:
    described = relation(1, ("id", INT4), ("n", NUMERIC), ("j", 114), ("mood", 70_000))
    binary: list[Cell] = [b"\0\0\0\7", b"\0\1\0\0\0\0\0\1\0\2", json.dumps({"a": 1}).encode(), b"happy"]
    text: list[Cell] = ["7", "2.0", '{"a": 1}', "happy"]
    record(
        tmp_path,
        *transaction(
            10,
            described,
            m.Insert(relation_oid=1, new=tuple(binary)),
            m.Insert(relation_oid=1, new=tuple(text)),
        ),
    )
    one, two = after(table(tmp_path, "t"))
    assert one == two == {"id": 7, "n": "2.0", "j": '{"a": 1}', "mood": "happy"}
    first, second = changes(tmp_path)
    assert first["after"] == second["after"]


def test_domains_have_their_base_types(tmp_path: Path) -> None:
    """The Type message of a domain names its base type."""
    positive = m.Type(oid=60_000, namespace="pg_catalog", name="numeric")
    money = msgspec.structs.replace(relation(1, ("id", 60_000)))
    exact = msgspec.structs.replace(
        money,
        columns=(make_column("id", 60_000, 786_438, key=True),),
    )
    record(tmp_path, *transaction(10, positive, exact, m.Insert(relation_oid=1, new=("1.50",))), cut=2)
    rows = table(tmp_path, "t")
    assert rows["after"].to_pylist() == [{"id": Decimal("1.50"), RESCUED: None}]
    assert changes(tmp_path)[0]["columns"] == '{"id":[1700,786438]}'
