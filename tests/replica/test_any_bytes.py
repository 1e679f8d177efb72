"""Bytes that are not UTF-8, as in SQL_ASCII databases: different values and names stay different.

A value comes back from its column, or its bytes come back from `_rescued_data`: in Python and in the compiled
kernel, from `to_text`, `to_arrow`, views and replicas, whether the server sends text or binary format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings, strategies as st

from logicalrep import messages as m, v4, views
from logicalrep.columns import ColumnDecoder
from logicalrep.messages import Cell, Message
from logicalrep.recording import Recording, SegmentReader
from logicalrep.replica import replica_tables, replicate
from logicalrep.values import parse_array, quote_array_element, to_arrow, to_text
from logicalrep.views import RESCUED
from logicalrep.wire import stored_name
from tests.columns.without_kernel import pure
from tests.effort import examples
from tests.messages import make_column, make_relation, transaction_of
from tests.recorder.lab import Lab
from tests.recording.recordings import record
from tests.server import Server

TEXT, TEXTS, ENUM, ENUMS = 25, 1009, 20_000, 20_001
PIECES: Final = (
    *rb"\x|\xff|\x5c|\|x|f|a|{|,".split(b"|"),
    *(bytes([byte]) for byte in b'\xff\xfe\x80\xc3\x28\xe9"'),
    "é€😀\N{NO-BREAK SPACE}".encode(),
    b"\xed\xa0\x80",  # a surrogate
    b"\xc0\x80",  # overlong
    b"\xf4\x90\x80\x80",  # above U+10FFFF
)
RAWS: Final = st.lists(st.sampled_from(PIECES), max_size=5).map(b"".join)
ZERO: Final = b"a\0b"


def cell_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def back(text: str | None) -> bytes:
    """Return the bytes of a value from its text in `to_text` and in the view `changes`."""
    assert text is not None
    return bytes.fromhex(text[3:]) if text.startswith("\0\\x") else text.encode()


def recovered(value: Any, rescued: str | None) -> bytes:
    """Return the bytes of a value from its column or from `_rescued_data`."""
    if rescued is None:
        return str(value).encode()
    assert (value, rescued[:2]) == (None, r"\x")
    return bytes.fromhex(rescued[2:])


def array_of(raw: bytes) -> str:
    """Return the text of the array {raw,ok}."""
    return "{" + quote_array_element(cell_of(raw)) + ",ok}"


@pytest.mark.parametrize("type_oid", [TEXT, ENUM])
@given(raws=st.lists(RAWS, unique=True))
def test_texts_of_values(type_oid: int, raws: list[bytes]) -> None:
    raws.append(ZERO)
    cells = [cell_of(raw) for raw in raws]
    texts = to_text(cells, type_oid)
    assert list(map(back, texts)) == raws
    for array, rescued in (to_arrow(cells, type_oid), to_arrow(pa.array(texts), type_oid)):
        assert [
            recovered(*one) for one in zip(array.to_pylist(), map(rescued.get, range(len(raws))), strict=True)
        ] == raws
    binary = to_text([raw for raw in raws if raw != b""], type_oid)
    assert all(text is not None and text.encode() for text in binary)
    assert len(set(binary)) == len(binary)


@given(raws=st.lists(RAWS, unique=True))
def test_arrays(raws: list[bytes]) -> None:
    cells = [array_of(raw) for raw in raws]
    array, rescued = to_arrow(cells, TEXTS)
    assert (array, rescued) == to_arrow(pa.array(to_text(cells, TEXTS), pa.string()), TEXTS)
    for row, (raw, items) in enumerate(zip(raws, array.to_pylist(), strict=True)):
        if items is None:
            found = parse_array(cell_of(recovered(None, rescued[row])))
            assert found == [cell_of(raw), "ok"]
        else:
            assert (items, rescued.get(row)) == ([raw.decode(), "ok"], None)


@given(names=st.lists(RAWS.filter(lambda raw: 0 not in raw), unique=True))
def test_names(names: list[bytes]) -> None:
    names = [*{*names, b"\xff", rb"\xff", rb"\x5cxff", b"\\\xff", b"\\xf\xff"}]
    stored = [stored_name(cell_of(name)) for name in names]
    assert len(set(stored)) == len(names)
    assert all(one.encode().decode() == one for one in stored)
    assert stored_name(r"a\x41\n\xf") == r"a\x41\n\xf"


@pytest.mark.parametrize("mode", [nullcontext, pure], ids=["kernel", "pure"])
@pytest.mark.parametrize("type_oid", [TEXT, ENUM, TEXTS])
@given(raws=st.lists(RAWS, min_size=1), binary=st.booleans())
@settings(max_examples=examples(50))
def test_kernel_and_python_agree(
    mode: Callable[[], AbstractContextManager[None]], type_oid: int, raws: list[bytes], binary: bool
) -> None:
    cells: list[Cell] = [*raws] if binary else [cell_of(raw) for raw in raws]
    sent = [
        make_relation(make_column("v", type_oid)),
        *(m.Insert(relation_oid=1, new=(one,)) for one in cells),
    ]
    array, expected = to_arrow(cells, type_oid)
    with mode():
        batch = ColumnDecoder(4).decode(pa.array([v4.encode(one) for one in sent], pa.binary()))
        (relation,) = batch.relations
        arrays, rescued = relation.new.values()
        assert relation.new.texts()[0].to_pylist() == to_text(cells, type_oid)
    assert arrays[0].equals(array)
    assert rescued.get("v", {}) == expected


KEYS: Final = [
    b"\xff",
    rb"\xff",
    b"\xff\xfe",
    rb"\xff\xfe",
    b"\\xff\xfe",
    "é".encode(),
    b"\xe9",
    b"a",
    b"\x80",
    b"",
]
SCHEMA: Final = make_relation(make_column("k", key=True), make_column("a", TEXTS), make_column("e", ENUM))


def changes(binary: bool) -> Iterator[Message]:
    """Insert all keys, update all, delete every third."""

    def cell(raw: bytes) -> Cell:
        return raw if binary else cell_of(raw)

    yield SCHEMA
    for raw in KEYS:
        yield m.Insert(relation_oid=1, new=(cell(raw), array_of(raw), cell(raw)))
    for raw in KEYS:
        yield m.Update(relation_oid=1, new=(cell(raw), array_of(b"new" + raw), cell(raw)))
    for raw in KEYS[::3]:
        yield m.Delete(relation_oid=1, key=(cell(raw), None, None))


def check_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    found = {}
    for row in rows:
        rescued = dict(row[RESCUED] or ())
        raw = recovered(row["k"], rescued.get("k"))
        # Bytes that are not UTF-8 have no text in binary format, whatever the type.
        assert recovered(row["e"], rescued.get("e")) == raw
        if row["a"] is None:
            assert parse_array(cell_of(bytes.fromhex(rescued["a"][2:]))) == [cell_of(b"new" + raw), "ok"]
        else:
            assert row["a"] == [(b"new" + raw).decode(), "ok"]
        found[raw] = row
    assert {*found} == {*KEYS} - {*KEYS[::3]}
    assert len(rows) == len(found)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("steps", [1, 40], ids=["at once", "one by one"])
def test_keys_of_a_replica(tmp_path: Path, binary: bool, history: bool, steps: int) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    folder.mkdir()
    relation, *sent = changes(binary)
    size = -(-len(sent) // min(steps, 8))
    for lsn, first in enumerate(range(0, len(sent), size), 1):
        record(folder, *transaction_of(lsn * 100, lsn, relation, *sent[first : first + size]))
        replicate(folder, target, history=history)
    (table,) = replica_tables(target).values()
    assert not table.error
    assert not table.may_differ
    rows = DeltaTable(table.place).to_pyarrow_table().to_pylist()
    check_rows([row for row in rows if row.get("__END_AT") is None])


@pytest.mark.parametrize("binary", [False, True])
def test_views(tmp_path: Path, binary: bool) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    record(folder, *transaction_of(100, 1, *changes(binary)))
    recording = Recording(folder)
    for task in views.plan_changes(recording, recording.numbers):
        with SegmentReader(task.place) as segment:
            rows = [
                row
                for batch in views.read(segment, views.ChangesView(segment, task, lambda _: True))
                for row in batch.to_pylist()
            ]
    inserts = [dict(row["after"]) for row in rows if row["operation"] == "Insert"]
    assert [back(row["k"]) for row in inserts] == [back(row["e"]) for row in inserts] == KEYS
    assert [back(row["a"]) for row in inserts] == [
        array_of(raw).encode("utf-8", "surrogateescape") for raw in KEYS
    ]


def test_a_live_sql_ascii_database(server: Server, tmp_path: Path) -> None:
    """Names, columns, keys and enum labels that differ only in a byte and its escape."""
    encoding = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    with Lab(server, tmp_path, encoding) as lab, lab.connect() as connection:
        connection.execute(b"CREATE TYPE mood AS ENUM ('\xff', '\\xff', 'e\xe9')")
        for table in (b"t\xff", rb"t\xff"):
            columns = b'k text PRIMARY KEY, "c\xff" text, "c\\xff" mood, a text[]'
            connection.execute(b'CREATE TABLE "%s" (%s)' % (table, columns))
        lab.run("CREATE PUBLICATION p FOR ALL TABLES")
        lab.record(snapshot=True)
        for table in (b"t\xff", rb"t\xff"):
            values = b"('\xff', '1', '\xff', '{\xe9,ok}'), ('\\xff', '2', '\\xff', '{\\\\xe9,ok}')"
            connection.execute(b'INSERT INTO "%s" VALUES %s' % (table, values))
        connection.execute(b"UPDATE \"t\xff\" SET \"c\xff\" = '3' WHERE k = '\\xff'")
        connection.execute(b"DELETE FROM \"t\\xff\" WHERE k = '\xff'")
        lab.record()
    replicate(lab.folder, tmp_path / "lake")
    tables = {
        one.name: DeltaTable(one.place).to_pyarrow_table()
        for one in replica_tables(tmp_path / "lake").values()
    }
    first, second = tables[r"t\xff"].to_pylist(), tables[r"t\x5cxff"].to_pylist()
    name, literal = r"c\xff", r"c\x5cxff"
    hexed = {"k": r"\xff", literal: r"\xff", "a": "\\x" + b"{\xe9,ok}".hex()}
    expected: list[dict[str, Any]] = [
        {"k": None, name: "1", literal: None, "a": None},
        {"k": r"\xff", name: "3", literal: r"\xff", "a": [r"\xe9", "ok"]},
    ]
    found = sorted(first, key=lambda row: row[name])
    assert [dict(row[RESCUED] or ()) for row in found] == [hexed, {}]
    assert [{key: row[key] for key in expected[0]} for row in found] == expected
    assert [(row["k"], row[name]) for row in second] == [(r"\xff", "2")]
