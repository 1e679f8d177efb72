"""ColumnDecoder gives the same messages, tuples and errors as StreamDecoder."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import Struct, json
from msgspec.structs import asdict, replace

from logicalrep import messages as m, v4
from logicalrep._roles import has_role, meaning_of, tuples
from logicalrep.columns import ColumnDecoder, DecodedBatch, Tuples
from logicalrep.columns.decode import HEADERS
from logicalrep.errors import DecodeError, StreamError
from logicalrep.jsonlines import to_json
from logicalrep.messages import Cell, Message, Relation, TupleData
from logicalrep.schemas import arrow as schemas
from logicalrep.stream import StreamDecoder
from logicalrep.testing import Stream, streams
from logicalrep.values import base_types, to_arrow, to_text
from logicalrep.wire import UNCHANGED, shown_text, stored_name, to_datetime
from tests.codec import corpus, fuzz
from tests.effort import examples, mostly_nightly
from tests.messages import STOP, make_column, make_relation, start_block
from tests.versions import OLDEST, UNKNOWN

pytestmark = pytest.mark.usefixtures("with_and_without_kernel")

TUPLES = ("new", "old", "key")
ID, NAME = (
    make_column("id", 23, key=True),
    make_column("name"),
)
RELATION = make_relation(ID, NAME)

Group = tuple[Relation, dict[str, list[tuple[int, TupleData]]]]


def encoded(*sent: Message) -> pa.Array:
    return pa.array([v4.encode(message) for message in sent], pa.binary())


def groups(
    sent: Sequence[Message | None], known: dict[int, Relation], types: dict[int, m.Type]
) -> list[Group]:
    """Return each schema version that ColumnDecoder must find, with its tuples by name (new, old, key)."""
    found: list[Group] = []
    for row, message in enumerate(sent):
        if isinstance(message, m.Type):
            types[message.oid] = message
        elif isinstance(message, Relation):
            relation = base_types(replace(message, xid=None), types)
            if known.get(message.oid) != relation:
                known[message.oid] = relation
        elif message is not None and has_role(message, "insert", "update", "delete"):
            relation = known[meaning_of(message, "relation")]
            group = next((one for one in found if one[0] is relation), None)
            if group is None:
                group = relation, {name: [] for name in TUPLES}
                found.append(group)
            for path, cells in tuples(message):
                group[1]["new" if path.endswith("]") else path].append((row, cells))
    return found


def assert_headers(headers: pa.RecordBatch, sent: Sequence[Message | None]) -> None:
    headers.validate(full=True)
    assert headers.schema == HEADERS
    for row, message in zip(headers.to_pylist(), sent, strict=True):
        assert row.pop("type") == (None if message is None else type(message).__name__)
        rescued = dict(row.pop("_rescued_data") or ())
        for name, value in row.items():
            right = getattr(message, name, None)
            if name in rescued:
                assert value is None
                assert message is not None
                text = to_json(message)[name]
                assert rescued[name] == (text if isinstance(text, str) else json.encode(text).decode())
            else:
                assert value == shown(name, right), name


def shown(name: str, value: Any) -> Any:
    if value is not None and pa.types.is_timestamp(HEADERS.field(name).type):
        return to_datetime(value)
    if name == "columns" and value is not None:
        names = [field.name for field in schemas.RELATION_COLUMN]
        return [{name: getattr(column, name) for name in names} for column in value]
    if isinstance(value, tuple):
        return [asdict(one) if isinstance(one, Struct) else one for one in value]
    return value


def assert_tuples(found: Tuples, relation: Relation, rows: list[tuple[int, TupleData]]) -> None:
    assert found.rows.to_pylist() == [row for row, _ in rows]
    assert len(found) == len(rows)
    kinds, raw, texts, (values, rescued) = found.kinds(), found.raw(), found.texts(), found.values()
    for place, column in enumerate(relation.columns):
        name = stored_name(column.name)
        cells = [cells[place] for _, cells in rows]
        assert kinds[place].to_pylist() == [kind(cell) for cell in cells]
        assert raw[place].to_pylist() == [as_bytes(cell) for cell in cells]
        assert texts[place].to_pylist() == to_text(cells, column.type_oid)
        sent = [None if cell is UNCHANGED else cell for cell in cells]
        array, lost = to_arrow(sent, column.type_oid, column.type_modifier)
        assert values[place].type == array.type
        assert repr(values[place].to_pylist()) == repr(array.to_pylist())  # NaN is not equal to itself
        assert rescued.get(name, {}) == lost
        for batch in kinds, raw, texts, values:
            assert batch.schema.names[place] == name
            batch.validate(full=True)


def kind(cell: Cell) -> str:
    return {type(None): "n", str: "t", bytes: "b"}.get(type(cell), "u")


def as_bytes(cell: Cell) -> bytes | None:
    if isinstance(cell, str):
        return cell.encode("utf-8", "surrogateescape")
    return cell if isinstance(cell, bytes) else None


def assert_decoded(decoded: DecodedBatch, sent: Sequence[Message | None], expected: list[Group]) -> None:
    assert_headers(decoded.headers, sent)
    assert [one.relation for one in decoded.relations] == [relation for relation, _ in expected]
    for found, (relation, rows) in zip(decoded.relations, expected, strict=True):
        for name in TUPLES:
            assert_tuples(getattr(found, name), relation, rows[name])


def parts(data: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Return the messages in batches of at most `size` messages."""
    return (data[start : start + size] for start in range(0, len(data), size))


def assert_same(
    data: Sequence[bytes | None],
    decoder: ColumnDecoder,
    objects: StreamDecoder,
    size: int,
    type_: pa.DataType,
) -> None:
    """Assert that ColumnDecoder decodes a stream, in batches of `size` messages, like StreamDecoder."""
    known: dict[int, Relation] = {}
    types: dict[int, m.Type] = {}
    for part in parts(data, size):
        sent = [None if one is None else objects.decode(one) for one in part]
        padded = pa.array([b"not", None, *part, b"in it"], type_)
        assert_decoded(decoder.decode(padded[2:-1]), sent, groups(sent, known, types))


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_captures_decode_as_with_stream_decoder(name: str) -> None:
    header, _, samples = corpus.read(name)
    source = random.Random(name)
    data: list[bytes | None] = [sample.data for sample in samples]
    for _ in range(20):
        data.insert(source.randrange(len(data)), None)
    for size, type_ in ((len(data), pa.binary()), (97, pa.large_binary())):
        decoder = ColumnDecoder(
            header.proto_version, streaming=header.streaming, two_phase=header.slot_two_phase
        )
        assert_same(data, decoder, header.decoder(), size, type_)


@settings(max_examples=examples(20))
@given(streams(), st.integers(1, 40))
def test_scenarios_decode_as_with_stream_decoder(stream: Stream, size: int) -> None:
    version, streaming = stream.options.proto_version, stream.options.streaming
    decoder = ColumnDecoder(version, streaming=streaming, two_phase=True)
    objects = StreamDecoder(version, streaming=streaming, two_phase=True)
    assert_same(stream.messages, decoder, objects, size, pa.binary())


@settings(max_examples=examples(20))
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_damaged_batches_give_the_stream_decoders_first_error(source: random.Random, size: int) -> None:
    """ColumnDecoder raises StreamDecoder's first error in a batch; later batches are decoded correctly."""
    decoder, objects = ColumnDecoder(4, streaming="on"), StreamDecoder(4, streaming="on")
    inputs = fuzz.inputs(source, *fuzz.seeds())
    for part in parts([next(inputs)[0] for _ in range(60)], size):
        sent = [decode(objects, one) for one in part]
        wrong = [(row, one) for row, one in enumerate(sent) if isinstance(one, DecodeError)]
        if not wrong:
            assert_headers(decoder.decode(pa.array(part, pa.binary())).headers, sent)  # type: ignore[arg-type]
            continue
        with pytest.raises(DecodeError) as error:
            decoder.decode(pa.array(part, pa.binary()))
        row, right = wrong[0]
        assert (type(error.value), str(error.value)) == (type(right), f"row {row}: {right}")
        assert vars(error.value) == vars(right)


def decode(decoder: StreamDecoder, data: bytes) -> Message | DecodeError:
    """Return the message that StreamDecoder decodes, or the DecodeError that StreamDecoder raises."""
    try:
        message = decoder.decode(data)
        see_change(message, decoder.relations)
    except DecodeError as error:
        return error
    return message


def see_change(message: Message, relations: dict[int, Relation]) -> None:
    if isinstance(message, m.Insert | m.Update | m.Delete):
        relation = relations.get(message.relation_oid)
        if relation is None:
            raise StreamError.at(message, f"no Relation message has come for the OID {message.relation_oid}")
        width = len(relation.columns)
        for name in ("key", "old", "new"):
            cells = getattr(message, name, None)
            if cells is not None and len(cells) != width:
                table = f"{shown_text(relation.namespace) or 'pg_catalog'}.{shown_text(relation.name)}"
                raise StreamError.at(message, f"{name} has {len(cells)} columns, but {table} has {width}")


def test_null_unchanged_text_and_binary_cells_are_distinguished() -> None:
    decoder = ColumnDecoder(OLDEST)
    decoder.decode(encoded(RELATION))
    insert = encoded(
        m.Insert(relation_oid=1, new=("1", None)),
        m.Insert(relation_oid=1, new=(b"\0\0\0\2", "caf\udce9")),
        m.Update(relation_oid=1, new=("x", UNCHANGED), key=("7", None)),
    )
    (found,) = decoder.decode(insert).relations
    assert found.new.kinds().to_pydict() == {"id": ["t", "b", "t"], "name": ["n", "t", "u"]}
    assert found.new.raw().to_pydict() == {"id": [b"1", b"\0\0\0\2", b"x"], "name": [None, b"caf\xe9", None]}
    assert found.new.texts().to_pydict() == {"id": ["1", "2", "x"], "name": [None, "\0\\x636166e9", None]}
    values, rescued = found.new.values()
    assert values.schema == pa.schema([("id", pa.int32()), ("name", pa.string())])
    assert values.to_pydict() == {"id": [1, 2, None], "name": [None, None, None]}
    assert rescued == {"id": {2: "x"}, "name": {1: "\\x636166e9"}}
    assert found.key.rows.to_pylist() == [2]
    assert found.key.texts().to_pydict() == {"id": ["7"], "name": [None]}
    assert len(found.old) == 0
    assert found.old.values()[0].schema == values.schema


def test_a_changed_relation_begins_a_new_schema_version() -> None:
    """A batch may have several schema versions. A Relation message with only a new xid begins none."""
    wider = replace(RELATION, columns=(ID, NAME, replace(NAME, name="more")))
    other = replace(RELATION, oid=2, name="u")
    row, wide = m.Insert(relation_oid=1, new=("1", "a")), m.Insert(relation_oid=1, new=("1", "a", "b"))
    decoder = ColumnDecoder(4, streaming="on")
    first = decoder.decode(
        encoded(other, RELATION, row, m.Insert(relation_oid=2, new=("1", "a")), RELATION, row, wider, wide)
    )
    assert [one.relation for one in first.relations] == [RELATION, other, wider]
    assert [one.new.rows.to_pylist() for one in first.relations] == [[2, 5], [3], [7]]
    stream = (start_block(7), replace(wider, xid=8), replace(wide, xid=8), STOP)
    second = decoder.decode(encoded(wide, *stream, wide))
    assert [one.new.rows.to_pylist() for one in second.relations] == [[0, 3, 5]]
    assert second.relations[0].relation == wider
    assert second.headers["xid"].to_pylist() == [None, 7, 8, 8, None, None]


def test_domains_have_their_base_types() -> None:
    typed = replace(RELATION, columns=(replace(ID, type_oid=20_000),))
    data = encoded(m.Type(oid=20_000, namespace="", name="int4"), typed, m.Insert(relation_oid=1, new=("5",)))
    (found,) = ColumnDecoder(OLDEST).decode(data).relations
    assert found.relation.columns[0].type_oid == 23
    assert found.new.values()[0].to_pydict() == {"id": [5]}


def test_errors_name_the_row() -> None:
    decoder = ColumnDecoder(OLDEST)
    row = m.Insert(relation_oid=1, new=("1", "a"))
    wrong = [
        (
            m.Insert(relation_oid=9, new=()),
            StreamError,
            "row 2: Insert: no Relation message has come for the OID 9",
        ),
        (
            m.Insert(relation_oid=1, new=()),
            StreamError,
            "row 2: Insert: new has 0 columns, but public.t has 2",
        ),
        (
            m.Update(relation_oid=1, new=("1", "a"), old=("1",)),
            StreamError,
            "row 2: Update: old has 1 columns, but public.t has 2",
        ),
        (
            m.StreamPrepare(prepare_lsn=1, end_lsn=2, prepare_time=0, xid=1, gid="g"),
            DecodeError,
            f"row 2: protocol version {OLDEST} has no Stream Prepare",
        ),
    ]
    for message, kind_, text in wrong:
        with pytest.raises(kind_) as error:
            decoder.decode(encoded(RELATION, row, message, row, m.Insert(relation_oid=8, new=())))
        assert str(error.value).startswith(text)
        assert error.value.message == type(message).__name__
    assert len(decoder.decode(encoded(row)).relations[0].new) == 1


def test_a_truncate_of_an_unknown_relation_is_an_error() -> None:
    decoder = ColumnDecoder(OLDEST)
    known, unknown = (
        m.Truncate(options=m.TruncateOption(0), relation_oids=oids) for oids in ((1,), (1, 9, 8))
    )
    assert decoder.find_error(encoded(RELATION, known)) is None
    found = decoder.find_error(encoded(known, unknown, known))
    assert found is not None
    assert found[0] == 1
    assert str(found[1]) == "Truncate: no Relation message has come for the OID 9"


def test_relations_of_a_batch_with_errors_stay_known() -> None:
    decoder = ColumnDecoder(OLDEST)
    with pytest.raises(DecodeError, match="row 0: no bytes"):
        decoder.decode(pa.array([b"", v4.encode(RELATION)], pa.binary()))
    assert decoder.decode(encoded(m.Insert(relation_oid=1, new=("1", "a")))).relations[0].relation == RELATION


def test_a_chunked_array_is_one_batch() -> None:
    chunks = pa.chunked_array(
        [
            encoded(RELATION),
            encoded(m.Insert(relation_oid=1, new=("1", "a")), m.Insert(relation_oid=1, new=("2", "b"))),
        ]
    )
    decoded = ColumnDecoder(OLDEST).decode(chunks)
    assert decoded.relations[0].new.rows.to_pylist() == [1, 2]
    assert decoded.headers["type"].to_pylist() == ["Relation", "Insert", "Insert"]


@pytest.mark.parametrize(
    "data",
    [pa.array([], pa.binary()), pa.nulls(0, pa.large_binary()), pa.chunked_array([], pa.binary())],
    ids=["binary", "large", "chunks"],
)
def test_an_empty_batch_decodes_to_nothing(data: Any) -> None:
    decoded = ColumnDecoder(OLDEST).decode(data)
    assert decoded.headers == pa.RecordBatch.from_pylist([], HEADERS)
    assert decoded.relations == []


def test_data_that_is_not_binary_is_refused() -> None:
    with pytest.raises(TypeError, match="expected messages as an Arrow array of binary, found string"):
        ColumnDecoder(OLDEST).decode(pa.array(["I"]))
    with pytest.raises(ValueError, match=f"there is no protocol version {UNKNOWN}"):
        ColumnDecoder(UNKNOWN)
