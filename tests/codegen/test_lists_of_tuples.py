"""A message with a list of rows, added by YAML only, gives the same results as one Insert for each row."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hatch_build
from codegen.load import load
from logicalrep import compiled
from tests.codegen.derived import NEW, ROUND_TRIP, example, generate, run_python
from tests.codegen.free import free
from tests.codegen.spec_copy import ROOT, Run, SpecCopy

NEEDS_KERNEL = pytest.mark.skipif(compiled.kernel is None, reason=f"logicalrep runs {compiled.HOW}")

TUPLES = ", ".join(load(ROOT / "spec").tuples)

OLD = """\
      - {name: old, tag: "O", type: TupleData, means: old, doc: The old row.}
"""

MESSAGES = """
import numpy as np
import pyarrow as pa
from logicalrep import compiled
from logicalrep.messages import *
from logicalrep.messages import UNCHANGED

COLUMNS = (
    RelationColumn(flags=ColumnFlag.KEY, name="id", type_oid=23, type_modifier=-1),
    RelationColumn(flags=ColumnFlag(0), name="text", type_oid=25, type_modifier=-1),
)
RELATION = Relation(
    oid=1, namespace="public", name="t", replica_identity=ReplicaIdentity.DEFAULT, columns=COLUMNS
)
OTHER = Relation(
    oid=2, namespace="public", name="u", replica_identity=ReplicaIdentity.DEFAULT, columns=COLUMNS[:1]
)
ROWS = (("1", "one"), ("2", None), (b"\\0\\0\\0\\3", UNCHANGED), ("4", "v\\udcff"))
MULTI = InsertBatch(relation_oid=1, new_rows=ROWS)


def encoded(messages):
    return pa.array([v_new.encode(message) for message in messages], pa.binary())
"""


@pytest.fixture(scope="module")
def pure_five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files generated for a version 5 with InsertBatch, without a compiled kernel."""
    return generate(tmp_path_factory.mktemp("pure"), example)


@pytest.fixture(
    scope="module", params=["pure", pytest.param("compiled", marks=[pytest.mark.nightly, NEEDS_KERNEL])]
)
def five(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pure_five: Path) -> Path:
    """The folder of the files generated for a version 5 with InsertBatch, without or with a kernel."""
    if request.param == "pure":
        return pure_five
    out: Path = tmp_path_factory.mktemp("compiled") / "generated"
    shutil.copytree(pure_five, out)
    hatch_build.build(out / "logicalrep/_kernel.pyx", out / "logicalrep")
    return out


def run_here(out: Path, code: str) -> None:
    run_python(out, MESSAGES + code)


def test_codecs_agree_on_lists_of_tuples(five: Path) -> None:
    run_here(
        five,
        """
data = v_new.encode(MULTI)
cells = b"\\0\\2t\\0\\0\\0\\1" b"1t\\0\\0\\0\\3one"
assert data.startswith(b"m\\0\\0\\0\\1\\0\\0\\0\\4" + cells), data
uneven = InsertBatch(relation_oid=1, new_rows=(("1",), (), ("1", None, "3")))
for message in (
    MULTI,
    InsertBatch(relation_oid=1, new_rows=()),
    uneven,
    InsertBatch(relation_oid=1, new_rows=ROWS, xid=7),
):
    data, in_stream = v_new.encode(message), message.xid is not None
    assert v_new.pure_encode(message) == data
    assert v_new.decode(data, in_stream) == v_new.pure_decode(data, in_stream) == message
    for end in range(len(data)):
        cut = data[:end]
        assert error_of(v_new.decode, cut, in_stream) == error_of(v_new.pure_decode, cut, in_stream)
claimed = b"m\\0\\0\\0\\1\\xff\\xff\\xff\\xff" + cells
text = "new_rows[1].count at byte 25: expected 2 bytes of the number of columns, found 0"
for decode in (v_new.decode, v_new.pure_decode):
    assert error_of(decode, claimed)[1] == f"InsertBatch.{text}", error_of(decode, claimed)
for rows, text in (
    (None, "new_rows: expected a tuple, found None"),
    ((("1", 2),), "new_rows[0][1]: expected None, UNCHANGED, a str or bytes, found the int 2"),
    (((), 5), "new_rows[1]: expected a tuple of cells, found the int 5"),
    ((((None,) * 65536),), "new_rows[0]: 65536 columns do not fit into Int16, the count before them"),
):
    for encode in (v_new.encode, v_new.pure_encode):
        found = error_of(encode, InsertBatch(relation_oid=1, new_rows=rows))[1]
        assert found == f"InsertBatch.{text}", found
""",
    )


def count_of_16_bits(spec: SpecCopy) -> None:
    spec.replace_last("count: new_rows, type: uint32", "count: new_rows, type: uint16")


def test_a_count_of_16_bits_refuses_more_rows(tmp_path: Path) -> None:
    run_here(
        generate(tmp_path, example, count_of_16_bits),
        """
text = "InsertBatch.new_rows: 65536 do not fit into Int16, the count before it"
assert error_of(v_new.encode, InsertBatch(relation_oid=1, new_rows=((),) * 65536))[1] == text
assert v_new.decode(v_new.encode(InsertBatch(relation_oid=1, new_rows=((),) * 65535))) == InsertBatch(
    relation_oid=1, new_rows=((),) * 65535
)
""",
    )


def test_messages_of_the_strategies_round_trip(five: Path) -> None:
    run_python(five, ROUND_TRIP)


def test_json_and_inspect_show_each_row(five: Path) -> None:
    run_here(
        five,
        """
import json
from logicalrep import _protocols
from logicalrep._walk import walk
from logicalrep.jsonlines import from_json, to_json

data = to_json(MULTI)
assert data["new_rows"][:3] == [["1", "one"], ["2", None], [{"binary": "00000003"}, {"unchanged": True}]]
assert from_json(json.loads(json.dumps(data))) == MULTI
data["new_rows"][1] = "2"
assert error_of(from_json, data)[1] == "InsertBatch.new_rows[1]: expected an array, found '2'"
data["new_rows"][1] = [{"wrong": 1}]
assert "InsertBatch.new_rows[1][0]: expected an object with one of the keys " in error_of(from_json, data)[1]
raw = v_new.encode(MULTI)
pieces = list(walk(_protocols.VERSIONS[NEW], raw, False, "off"))
assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
assert pieces[-1].end == len(raw)
values = {piece.path: piece.value for piece in pieces}
assert (values["new_rows.count"], values["new_rows[1].count"], values["new_rows[0][1]"]) == (4, 2, "one")
""",
    )


def test_schemas_have_a_list_of_lists_of_cells(five: Path) -> None:
    run_here(
        five,
        """
from logicalrep.schemas import arrow, spark

assert arrow.MESSAGES.field("new_rows").type.value_type == arrow.TUPLE_DATA
assert spark.MESSAGES["new_rows"].dataType.elementType == spark.TUPLE_DATA
""",
    )
    page = (five / f"reference/v{NEW}.md").read_text(encoding="utf-8")
    assert free("- Next, for each of new_rows, `TupleData`: The new rows.") in page


INDEX = """
from logicalrep._index import SchemaVersions, message_columns
from logicalrep._index.kernel import KernelIndex
from logicalrep._index.pure import PureIndex
from logicalrep.schemas import arrow
from logicalrep.stream import StreamDecoder

uneven = InsertBatch(relation_oid=1, new_rows=(("1",), (), ("1", None, "3")))
stream = [
    RELATION,
    MULTI,
    Insert(relation_oid=1, new=("5", "five")),
    InsertBatch(relation_oid=1, new_rows=()),
    uneven,
    Delete(relation_oid=1, key=("1", None)),
    Update(relation_oid=1, new=("1", "x"), old=("1", "y")),
    MULTI,
]
valid = encoded(stream).to_pylist()
broken = [valid[1][:-1], b"m" + valid[1][1:5] + b"\\xff" * 4 + valid[1][9:]]
data = pa.array([*valid[:3], None, *broken, *valid[3:], *broken[:1]], pa.binary())
"""


def test_the_index_numbers_all_cells_consecutively(five: Path) -> None:
    run_here(
        five,
        INDEX
        + """
seen = []
for make in [PureIndex] + [KernelIndex] * (compiled.kernel is not None):
    index = make(data, StreamDecoder(NEW))
    assert sorted(index.errors) == [4, 5, 11]
    first, width, count = (numbers.tolist() for numbers in index.tuples_in("new_rows"))
    assert first == [-1, 0, -1, -1, -1, -1, 10, 10, -1, -1, 20, -1]
    assert width == [0, 2, 0, 0, 0, 0, 0, -1, 0, 0, 2, 0]
    assert count == [0, 4, 0, 0, 0, 0, 0, 3, 0, 0, 4, 0]
    assert index.tuples_in("new").first.tolist() == [-1, -1, 8, -1, -1, -1, -1, -1, -1, 18, -1, -1]
    assert index.cells(np.arange(8)) == [cell for row in ROWS for cell in row]
    assert len(index.kinds) == 28
    found = SchemaVersions([1], [1]).find_tuples(index, "new")
    assert found.rows.tolist() == [1, 1, 1, 1, 2, 7, 7, 7, 9, 10, 10, 10, 10]
    assert found.first[:5].tolist() == [0, 2, 4, 6, 8] and found.first[8:].tolist() == [18, 20, 22, 24, 26]
    assert found.versions.tolist() == [0] * 13
    assert [m for m in index.messages(np.flatnonzero(index.tags).tolist())] == stream
    columns = pa.table(message_columns(index), schema=arrow.MESSAGES)
    columns.validate(full=True)
    seen.append(columns.to_pylist())
    rows = columns["new_rows"].to_pylist()
    assert [None if row is None else [len(cells) for cells in row] for row in rows] == [
        None, [2, 2, 2, 2], None, None, None, None, [], [1, 0, 3], None, None, [2, 2, 2, 2], None
    ]
    assert rows[1][0][1] == {"kind": "t", "text": "one", "binary": None}
    assert rows[1][3][1] == {"kind": "t", "text": None, "binary": b"v\\xff"}
assert seen[0] == seen[-1]
""",
    )


def test_both_indexes_of_damaged_messages_are_equal(five: Path) -> None:
    run_here(
        five,
        INDEX
        + """
import random

draw = random.Random(1)
damaged = []
for _ in range(500):
    raw = bytearray(draw.choice([one for one in valid[1:] if one[:1] == b"m"]))
    for _ in range(draw.randrange(3)):
        raw[draw.randrange(1, len(raw))] = draw.choice([0, 1, 2, 3, *b"nutb", 255, draw.randrange(256)])
    damaged.append(bytes(raw[: draw.choice([len(raw)] * 3 + [draw.randrange(1, len(raw))])]))
data = pa.array([valid[0], *damaged], pa.binary())
kinds = [PureIndex] + [KernelIndex] * (compiled.kernel is not None)
made = [make(data, StreamDecoder(NEW)) for make in kinds]
seen = []
for index in made:
    errors = {row: str(error) for row, error in index.errors.items()}
    assert 50 < len(errors) < 450, len(errors)
    tuples = index.tuples_in("new_rows")
    numbers = None if tuples is None else [part.tolist() for part in tuples]
    cells = index.cells(np.arange(len(index.kinds)))
    columns = pa.table(message_columns(index), schema=arrow.MESSAGES).to_pylist()
    seen.append((errors, numbers, cells, index.tags.tolist(), columns))
assert seen[0] == seen[-1]
""",
    )


def test_column_decoder_returns_a_tuple_for_each_row(five: Path) -> None:
    run_here(
        five,
        """
from logicalrep.columns import ColumnDecoder

single = [Insert(relation_oid=1, new=row) for row in ROWS]
update = Update(relation_oid=1, new=("1", "x"), key=("1", None))
batches = [encoded([RELATION, *changes, update]) for changes in ([MULTI], single)]
multi, one_by_one = (ColumnDecoder(NEW).decode(batch).relations[0] for batch in batches)
assert multi.new.rows.to_pylist() == [1, 1, 1, 1, 2]
for part in ("new", "old", "key"):
    for method in ("kinds", "raw", "texts"):
        assert getattr(getattr(multi, part), method)() == getattr(getattr(one_by_one, part), method)()
assert multi.new.values() == one_by_one.new.values()
assert "new_rows" not in ColumnDecoder(NEW).decode(batches[0]).headers.schema.names
for rows, oid, text in (
    ((("1", "x"), ("1",)), 1, "new_rows[1] has 1 columns, but public.t has 2"),
    ((("1",), ("1",)), 1, "new_rows[0] has 1 columns, but public.t has 2"),
    ((("1",),), 3, "no Relation message has come for the OID 3"),
):
    wrong = encoded([RELATION, MULTI, InsertBatch(relation_oid=oid, new_rows=rows)])
    found = error_of(ColumnDecoder(NEW).decode, wrong)[1]
    assert found == f"row 2: InsertBatch: {text}", found
    assert ColumnDecoder(NEW).find_error(wrong)[0] == 2
""",
    )


RECORDINGS = """
import tempfile
import msgspec
from pathlib import Path
from logicalrep.capturefile import Header, encode_header, encode_record
from logicalrep.recording import Recording, SegmentReader, record_capture_file
from logicalrep import views


def recorded(folder, name, stream):
    path = Path(folder, f"{name}.jsonl")
    lines = [encode_record("data", v_new.encode(message)) for message in stream]
    path.write_bytes(encode_header(Header(NEW, {"streaming": "on"})) + b"".join(lines))
    record_capture_file(path, f"{folder}/{name}")
    return Recording(f"{folder}/{name}")


def in_transactions(changes):
    inside, dropped = ([msgspec.structs.replace(one, xid=xid) for one in changes] for xid in (9, 10))
    return [
        Begin(final_lsn=100, commit_time=5, xid=7),
        RELATION,
        OTHER,
        *changes,
        Commit(commit_lsn=100, end_lsn=108, commit_time=5, flush_lsn=1),
        StreamStart(xid=9, first_stream_segment=True),
        *inside,
        *dropped,
        StreamStop(),
        StreamAbort(xid=9, subxid=10),
        StreamCommit(xid=9, commit_lsn=200, end_lsn=208, commit_time=6),
        Begin(final_lsn=300, commit_time=7, xid=11),
        *changes,
        Commit(commit_lsn=300, end_lsn=308, commit_time=7, flush_lsn=1),
    ]


AFTER = [
    Update(relation_oid=1, new=("4", "x"), key=None),
    Truncate(options=TruncateOption(0), relation_oids=(2, 1)),
    Insert(relation_oid=2, new=("5",)),
    Delete(relation_oid=1, key=("1", None)),
]
MULTIPLE = [
    MULTI,
    InsertBatch(relation_oid=2, new_rows=()),
    InsertBatch(relation_oid=2, new_rows=(("1",), ("2",))),
    *AFTER,
]
SINGLE = [
    *(Insert(relation_oid=1, new=row) for row in ROWS),
    Insert(relation_oid=2, new=("1",)),
    Insert(relation_oid=2, new=("2",)),
    *AFTER,
]


def rows_of(recording, view, tasks):
    found = []
    for task in tasks:
        with SegmentReader(task.place) as segment:
            found += [row for batch in views.read(segment, view(segment, task)) for row in batch.to_pylist()]
    return found
"""


def test_views_have_a_row_for_each_new_row(five: Path) -> None:
    run_here(
        five,
        RECORDINGS
        + """
with tempfile.TemporaryDirectory() as folder:
    tables = []
    for name, changes in (("multi", MULTIPLE), ("single", SINGLE)):
        recording = recorded(folder, name, in_transactions(changes))
        tasks = views.plan_changes(recording, recording.numbers)
        all_changes = rows_of(recording, lambda s, t: views.ChangesView(s, t, lambda one: True), tasks)
        versions = list(views.schema_versions(recording.metadata(recording.numbers)))
        row = views.row_type([one.schema for one in versions if one.relation.oid == 1])
        schema = views.table_schema(row)
        table = rows_of(
            recording, lambda s, t: views.TableView(s, t, lambda one: one.relation.oid == 1, schema), tasks
        )
        for rows in (all_changes, table):
            assert [one["position"] for one in rows] == sorted(one["position"] for one in rows)
            for one in rows:
                del one["position"], one["sequence"]
        tables.append((all_changes, table, views.schema_batch(versions).drop_columns("position").to_pylist()))
        tasks = views.plan_messages(recording, recording.numbers)
        sent = rows_of(recording, lambda s, t: views.MessagesView(s), tasks)
        assert len(sent) == len(in_transactions(changes))
        lists = [len(one["new_rows"]) for one in sent if one["type"] == "InsertBatch"]
        assert lists == ([4, 0, 2] * 4 if name == "multi" else []), lists
    assert len(tables[0][0]) == 3 * (6 + 5), len(tables[0][0])
    assert tables[0] == tables[1]
    operations = {one["operation"] for one in tables[0][0]}
    assert operations == {"Insert", "Update", "Delete", "Truncate"}, operations
""",
    )


def test_messages_in_any_order_have_a_change_for_each_new_row(five: Path) -> None:
    run_here(
        five,
        """
from logicalrep.stream import StreamDecoder
from logicalrep.views import UnorderedDecoder, build_stream_context, decoded_batch


def decoded(messages):
    data = encoded(messages)
    context = build_stream_context([((0,), data[0].as_py())], StreamDecoder(NEW))
    keys = [pa.array(range(len(messages)))]
    batch = UnorderedDecoder(context, StreamDecoder(NEW)).decode(keys, data)
    return decoded_batch(batch)["changes"].to_pylist(), {row: str(one) for row, one in batch.errors.items()}


multi, no_errors = decoded(
    [RELATION, MULTI, InsertBatch(relation_oid=1, new_rows=()), Insert(relation_oid=1, new=ROWS[0])]
)
single, _ = decoded(
    [RELATION, *(Insert(relation_oid=1, new=row) for row in ROWS), Insert(relation_oid=1, new=ROWS[0])]
)
assert [one and len(one) for one in multi] == [None, 4, None, 1] and not no_errors
assert multi[1] + multi[3] == [one for changes in single if changes for one in changes]
wrong, errors = decoded(
    [RELATION, InsertBatch(relation_oid=1, new_rows=(*ROWS, ("1",))), Insert(relation_oid=1, new=ROWS[0])]
)
assert errors == {1: "InsertBatch: new_rows[4] has 1 columns, but public.t has 2"}, errors
assert [one and len(one) for one in wrong] == [None, None, 1]
""",
    )


def test_tables_in_memory_store_each_new_row(pure_five: Path) -> None:
    run_here(
        pure_five,
        RECORDINGS
        + """
from logicalrep.stream import StreamDecoder, Tables, Transactions

found = []
for changes in (MULTIPLE, SINGLE, MULTIPLE[:-4], SINGLE[:-4], MULTIPLE[:-2], SINGLE[:-2]):
    decoder, tables = StreamDecoder(NEW, streaming="on"), Tables()
    transactions = Transactions(decoder)
    for message in in_transactions(changes):
        transaction = transactions.feed(decoder.decode(v_new.encode(message)))
        if transaction is not None:
            tables.apply(transaction)
    found.append({oid: list(table) for oid, table in tables.items()})
decoder = StreamDecoder(NEW)
transactions = Transactions(decoder)
wrong = [
    Begin(final_lsn=1, commit_time=2, xid=3),
    RELATION,
    InsertBatch(relation_oid=1, new_rows=(*ROWS, ("1",))),
]
*first, last = [decoder.decode(v_new.encode(message)) for message in wrong]
assert [transactions.feed(message) for message in first] == [None, None]
text = "InsertBatch: new_rows[4] has 1 columns, but public.t has 2"
assert error_of(transactions.feed, last)[1] == text, error_of(transactions.feed, last)
assert found[::2] == found[1::2]
assert [[len(rows) for rows in tables.values()] for tables in found[::2]] == [[0, 1], [12, 6], [0, 0]], found
""",
    )


def test_replicas_have_each_new_row(pure_five: Path) -> None:
    run_here(
        pure_five,
        RECORDINGS
        + """
from deltalake import DeltaTable
from logicalrep.recording import locate
from logicalrep.apply import apply_changes
from logicalrep.replica import replica_tables
from logicalrep.views import read_changes

changes = {
    "multi": [InsertBatch(relation_oid=1, new_rows=ROWS[:2]), *MULTIPLE[2:]],
    "single": [*SINGLE[:2], *SINGLE[4:]],
}
found = []
with tempfile.TemporaryDirectory() as folder:
    for name, made in changes.items():
        recording = recorded(folder, name, in_transactions(made[:-4]))
        batches = []
        for task in views.plan_changes(recording, recording.numbers):
            with SegmentReader(task.place) as segment:
                batches += read_changes(segment, task, lambda one: one.relation.oid == 1)
        result = apply_changes(lambda: iter(batches), locate(f"{folder}/{name}.target"), 1, "", history=False)
        assert not result.error and result.changes == {"Insert": 6}, result
        table = pa.table(DeltaTable(replica_tables(f"{folder}/{name}.target")[1].place).scan())
        found.append(sorted(table.to_pylist(), key=str))
assert found[0] == found[1] and len(found[0]) == 2, found
""",
    )


def test_a_chunk_that_ends_inside_a_message_loses_and_doubles_no_row(pure_five: Path) -> None:
    """A query that is killed between two chunks of a message continues behind its last applied row."""
    run_here(
        pure_five,
        RECORDINGS
        + """
from deltalake import DeltaTable
from logicalrep.recording import locate
from logicalrep.apply import apply_changes
from logicalrep.replica import recorded_changes, replica_tables
from logicalrep.views import read_changes
from logicalrep.targets.delta.table import DeltaFormat, _Table
from logicalrep.apply.pending_chunks import PendingChunks


class Killed(BaseException):
    pass


def kill_at(number, commit=_Table.commit):
    '''Kill the query when it begins the commit with this number, from 0.'''
    numbers = iter(range(number))

    def counted(*arguments, **schema):
        if next(numbers, None) is None:
            raise Killed
        commit(*arguments, **schema)

    _Table.commit = counted
    PendingChunks.is_full = True  # each chunk is a commit


rows = tuple((str(number), "x") for number in range(5))
stream = [
    Begin(final_lsn=90, commit_time=5, xid=6),
    RELATION,
    OTHER,
    Truncate(options=TruncateOption(0), relation_oids=(2, 1)),
    Commit(commit_lsn=90, end_lsn=98, commit_time=5, flush_lsn=1),
    Begin(final_lsn=100, commit_time=5, xid=7),
    InsertBatch(relation_oid=1, new_rows=rows),
    Insert(relation_oid=1, new=("5", "y")),
    Commit(commit_lsn=100, end_lsn=108, commit_time=5, flush_lsn=1),
    Begin(final_lsn=200, commit_time=6, xid=8),
    InsertBatch(relation_oid=1, new_rows=tuple((f"1{id}", text) for id, text in rows)),
    Commit(commit_lsn=200, end_lsn=208, commit_time=6, flush_lsn=1),
]
with tempfile.TemporaryDirectory() as folder:
    recording = recorded(folder, "made", stream)
    changes = rows_of(
        recording,
        lambda s, t: views.ChangesView(s, t, lambda one: one.relation.oid == 1),
        views.plan_changes(recording, recording.numbers),
    )
    sequences = [tuple(one["sequence"].values()) for one in changes]
    assert sequences == sorted(set(sequences)), sequences
    assert [row for *_, row in sequences] == [1, *range(5), 0, *range(5)], sequences
    (task,) = views.plan_changes(recording, recording.numbers)
    with SegmentReader(task.place) as segment:
        made = [*read_changes(segment, task, lambda one: one.relation.oid == 1)]
    for killed in range(1, 6):
        target = f"{folder}/{killed}"
        kill_at(killed)
        try:
            apply_changes(lambda: iter(made), locate(target), 1, "", history=False, max_rows=2)
        except Killed:
            pass
        else:
            raise AssertionError(killed)
        place = replica_tables(target)[1].place
        applied = DeltaFormat().open(locate(place)).version_before(1 << 64).applied
        missing = recorded_changes.read_missing(recording, {1: applied}, 300)
        left = [
            tuple(one.values()) for part in missing.sorted(1) for one in part.rows["sequence"].to_pylist()
        ]
        assert left == [one for one in sequences if one > applied], (applied, left)
        assert pa.table(DeltaTable(place).scan()).num_rows + len(left) == 11, (killed, applied, left)
        kill_at(100)
        result = apply_changes(lambda: iter(made), locate(target), 1, "", history=False, max_rows=2)
        assert not result.error and not result.unmatched, result
        found = pa.table(DeltaTable(place).scan())["id"].to_pylist()
        assert sorted(found) == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14], found
""",
    )


@pytest.mark.nightly
def test_spark_replicates_each_new_row(pure_five: Path) -> None:
    run_here(
        pure_five,
        RECORDINGS
        + """
from deltalake import DeltaTable
from logicalrep.replica import replica_tables
from logicalrep.spark import LogicalrepDataSource, local_session, replicate

found = []
with tempfile.TemporaryDirectory() as folder:
    session = local_session("multi", cores=1)
    session.dataSource.register(LogicalrepDataSource)
    multi, single = (
        [InsertBatch(relation_oid=1, new_rows=ROWS[:2]), *MULTIPLE[2:-4]],
        [*SINGLE[:2], *SINGLE[4:-4]],
    )
    for name, made in (("multi", multi), ("single", single)):
        recorded(folder, name, in_transactions(made))
        changes = session.readStream.format("pgoutput").option("view", "changes").load(f"{folder}/{name}")
        reports = []
        replicate(
            changes,
            f"{folder}/{name}.target",
            trigger={"availableNow": True},
            on_batch=lambda batch, results: reports.extend(results),
        ).awaitTermination()
        assert reports and not any(result.error for result in reports), reports
        table = pa.table(DeltaTable(replica_tables(f"{folder}/{name}.target")[1].place).scan())
        found.append(sorted(table.to_pylist(), key=str))
    session.stop()
assert len(found[0]) == 2 and found[0] == found[1], found
""",
    )


def test_columns_and_the_spark_writer_fill_new_fields(five: Path) -> None:
    run_here(
        five,
        """
import tempfile
from pathlib import Path
from logicalrep.columns import encode_commits, encode_inserts
from logicalrep.recording import SegmentReader
from logicalrep.spark.transactions import write_partition
from logicalrep.spark.write_plan import describe_table, plan_segments

numbers = [np.array([number, number + 1]) for number in (10, 20, 30)]
expected = [
    Commit(commit_lsn=10, end_lsn=20, commit_time=30, flush_lsn=0),
    Commit(commit_lsn=11, end_lsn=21, commit_time=31, flush_lsn=0),
]
assert encode_commits(*numbers, proto_version=NEW) == encoded(expected)
old = encode_commits(*numbers, proto_version=OLD)
assert [len(one) for one in old.to_pylist()] == [26, 26]
inserts = encode_inserts(1, [pa.array(["1", "2"])], proto_version=NEW)
assert inserts == encoded([Insert(relation_oid=1, new=("1",)), Insert(relation_oid=1, new=("2",))])

rows = pa.record_batch({"id": pa.array([1, 2]), "operation": ["Insert", "Delete"]})
with tempfile.TemporaryDirectory() as folder:
    options = {"table": "a.b", "key": "id", "operation": "operation", "proto_version": str(NEW)}
    table, plan = plan_segments(f"{folder}/recording", describe_table(options, rows.schema), overwrite=False)
    plan.folder.mkdir()
    path = write_partition(plan.folder, table, plan, 0, iter([rows]))
    with SegmentReader(path) as segment:
        (batch,) = segment.batches()
        messages = [type(v_new.decode(one)).__name__ for one in batch["data"].to_pylist()]
        assert messages == ["Begin", "Relation", "Insert", "Delete", "Commit"], messages
""",
    )


@pytest.mark.parametrize(
    ("role", "field", "text"),
    [
        ("update", "list_of: TupleData", "the meaning `new` needs one value, not a list"),
        ("insert", "list_of: oid", f"the meaning `new` needs the type {TUPLES}, not a list of oid"),
    ],
)
def test_only_inserts_have_a_list_of_rows(role: str, field: str, text: str, run: Run, spec: SpecCopy) -> None:
    example(spec)
    spec.replace_last("name: new_rows, list_of: TupleData", f"name: new_rows, {field}")
    if role == "update":
        spec.replace("role: insert\n    title: Insert Batch", "role: update\n    title: Insert Batch")
        spec.add("  InsertBatch:", OLD)
    result = run("--spec", spec.folder, "--out", spec.folder / "out")
    assert result.code == 1
    assert f"{free('InsertBatch.new_rows')}: {text}\n" in result.err
