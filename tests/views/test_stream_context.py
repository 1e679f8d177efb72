"""UnorderedDecoder decodes shuffled messages with the same results as StreamDecoder in stream order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from logicalrep import messages as m
from logicalrep.errors import DecodeError, StreamError
from logicalrep.messages import Message
from logicalrep.stream import StreamDecoder, encode_for
from logicalrep.views import (
    CONTEXT_TAGS,
    DECODED,
    Key,
    RelationSchema,
    UnorderedDecoder,
    build_stream_context,
    decoded_batch,
)
from logicalrep.views.stream_context import StreamContext
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.messages import STOP, make_column, make_relation, start_block

pytestmark = pytest.mark.usefixtures("with_and_without_kernel")

COLUMN = make_column("id", 23, key=True)
RELATION = make_relation(COLUMN)
WIDER = replace(RELATION, columns=(COLUMN, replace(COLUMN, flags=0, name="v")))


def new_decoder() -> StreamDecoder:
    return StreamDecoder(4, streaming="parallel")


def stream(*messages: Message) -> list[tuple[Key, bytes]]:
    return [((place,), encode_for(message, 4)) for place, message in enumerate(messages)]


def context_of(rows: Iterable[tuple[Key, bytes]]) -> StreamContext:
    return build_stream_context((row for row in rows if row[1][:1] in CONTEXT_TAGS), new_decoder())


class Found(NamedTuple):
    """A decoded message, and the schemas of the relations that the message changes."""

    message: Message
    schemas: list[RelationSchema]


def read(
    rows: Sequence[tuple[Key, bytes | None]], context: StreamContext, decoder: StreamDecoder
) -> list[Found | DecodeError | None]:
    """Decode rows in one batch; return each row's message with its schemas, its error, or None for NULL."""
    keys = [pa.array(column) for column in zip(*(key for key, _ in rows), strict=True)]
    placed = UnorderedDecoder(context, decoder).decode(
        keys, pa.array([data for _, data in rows], pa.binary())
    )
    assert not set(placed.errors) & set(placed.changes.rows.tolist())
    found: list[Found | DecodeError | None] = []
    for row, (_, data) in enumerate(rows):
        if row in placed.errors:
            found.append(placed.errors[row])
        elif data is None:
            found.append(None)
        else:
            (message,) = placed.index.messages([row])
            numbers = placed.changes.schema[placed.changes.rows == row].tolist()
            found.append(Found(message, [placed.changes.schemas[number] for number in numbers]))
    return found


def decode(rows: Sequence[tuple[Key, bytes]]) -> list[Found]:
    found = read(rows, context_of(rows), new_decoder())
    return [one for one in found if isinstance(one, Found)]


def errors(rows: Sequence[tuple[Key, bytes]]) -> list[str | None]:
    found = read(rows, context_of(rows), new_decoder())
    return [str(one) if isinstance(one, DecodeError) else None for one in found]


def insert(*cells: str, xid: int | None = None) -> m.Insert:
    return m.Insert(relation_oid=1, new=cells, xid=xid)


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_shuffled_captures_decode_as_in_order(name: str) -> None:
    """Each message decodes as in stream order, with the schema versions valid at the message."""
    header, _, samples = corpus.read(name)
    ordered = header.decoder()
    expected = []
    for sample in samples:
        message = ordered.decode(sample.data)
        relation = ordered.relations.get(getattr(message, "relation_oid", 0))
        described = [] if relation is None else [(relation.name, [one.name for one in relation.columns])]
        expected.append((message, described))
    rows = [((place,), sample.data) for place, sample in enumerate(samples)]
    random.Random(name).shuffle(rows)
    context = build_stream_context((row for row in rows if row[1][:1] in CONTEXT_TAGS), header.decoder())
    for (key, _), found in zip(rows, read(rows, context, header.decoder()), strict=True):
        message, described = expected[key[0]]
        assert isinstance(found, Found)
        assert found.message == message
        if described:
            assert [(one.relation.name, [*one.names]) for one in found.schemas] == described
        else:
            assert [one.relation.oid for one in found.schemas] == [*getattr(message, "relation_oids", ())]


def test_a_schema_version_is_valid_until_the_next_relation_message() -> None:
    rows = stream(RELATION, insert("1"), WIDER, insert("1", "2"), RELATION, insert("1"))
    names = [schema.names for placed in decode(rows) for schema in placed.schemas]
    assert names == [("id",), ("id", "v"), ("id",)]


def test_a_repeated_relation_is_kept_once() -> None:
    """A Relation message that is repeated in a stream block differs from the first one only by the xid."""
    rows = stream(RELATION, start_block(7), replace(RELATION, xid=8), insert("1", xid=8), STOP)
    context = context_of(rows)
    assert context.relations == [RELATION]
    places = context.ranks([pa.array(range(5))])
    assert context.in_stream(places).tolist() == [False, False, True, True, True]
    assert len(decode(rows)) == 5


def test_a_changed_type_begins_a_new_schema_version() -> None:
    typed = replace(RELATION, columns=(replace(COLUMN, type_oid=20000),))
    rows = stream(
        m.Type(oid=20000, namespace="", name="int4"),
        typed,
        insert("1"),
        m.Type(oid=20000, namespace="", name="text"),
        typed,
        insert("1"),
    )
    assert [schema.types for placed in decode(rows) for schema in placed.schemas] == [(23,), (25,)]


@pytest.mark.parametrize(
    "key",
    [
        lambda place: (place - 4,),
        lambda place: (place // 3 - 1, -(2**63) + place % 3),
        lambda place: (2**63 - 8 + place,),
        lambda place: ("wal", place),
        lambda place: (f"{place:02}",),
    ],
    ids=["negative", "two", "large", "mixed", "text"],
)
def test_any_sortable_key_is_accepted(key: Callable[[int], Key]) -> None:
    rows = stream(RELATION, start_block(7), insert("1", xid=8), STOP, WIDER, insert("1", "2"))
    placed = [(key(place), data) for (place,), data in rows]
    random.Random(0).shuffle(placed)
    found = dict(zip([key for key, _ in placed], decode(placed), strict=True))
    assert [getattr(found[key(place)].message, "xid", 0) for place in range(6)] == [None, 7, 8, 0, None, None]
    assert [one.names for one in found[key(2)].schemas] == [("id",)]
    assert [one.names for one in found[key(5)].schemas] == [("id", "v")]


def test_a_change_without_its_relation_is_an_error() -> None:
    rows = stream(
        insert("1"),
        RELATION,
        insert("1", "2"),
        m.Truncate(options=m.TruncateOption(0), relation_oids=(1, 2, 3)),
        insert("1"),
    )
    no, _, wide, truncate, fine = errors(rows)
    assert no == "Insert: no Relation message has come for the OID 1"
    assert wide == "Insert: new has 2 columns, but public.t has 1"
    assert truncate == "Truncate: no Relation message has come for the OID 2"
    assert fine is None


def test_messages_have_an_xid_only_inside_stream_blocks() -> None:
    rows = stream(
        RELATION,
        start_block(7),
        insert("1", xid=8),
        STOP,
        m.Begin(final_lsn=1, commit_time=0, xid=9),
        insert("1"),
    )
    assert [getattr(placed.message, "xid", None) for placed in decode(rows)] == [None, 7, 8, None, 9, None]


def test_changes_after_an_invalid_relation_message_are_invalid() -> None:
    """Their columns are unknown: the number of columns says nothing about names."""
    whole = stream(RELATION, insert("1"), RELATION, insert("2"), RELATION, insert("3"))
    for cut in range(5, len(whole[2][1])):
        rows = [*whole[:2], (whole[2][0], whole[2][1][:cut]), *whole[3:]]
        damaged, after = errors(rows)[2:4]
        assert damaged is not None
        assert damaged.startswith("Relation")
        assert after == "Insert: the last Relation message of the OID 1 is invalid"
        assert [error is None for error in errors(rows)] == [True, True, False, False, True, True]
        assert context_of(rows[:4]).latest_relations() == []
        assert context_of(rows).latest_relations() == [RELATION]


def test_a_repeated_invalid_relation_message_concerns_no_other_relation() -> None:
    other = replace(RELATION, oid=2)
    rows = stream(RELATION, RELATION, RELATION, other, replace(insert("1"), relation_oid=2), insert("1"))
    for number in (1, 2):
        rows[number] = rows[number][0], rows[number][1][:-1]
    assert [error is None for error in errors(rows)] == [True, False, False, True, True, False]


def test_damaged_messages_have_no_effect() -> None:
    """As in StreamDecoder, where a damaged Stream Start opens its block; but see the test of relations."""
    rows = stream(RELATION, start_block(7), insert("1", xid=8), STOP, WIDER, insert("1"))
    assert errors(rows)[5] == "Insert: new has 1 columns, but public.t has 2"
    rows[4] = (rows[4][0], b"Rx")
    assert [error is None for error in errors(rows)] == [True, True, True, True, False, True]
    rows[1] = (rows[1][0], b"S")
    assert [error is None for error in errors(rows)] == [True, False, True, True, False, True]
    rows[1] = (rows[1][0], b"?")
    found = errors(rows)
    assert [error is None for error in found] == [True, False, False, False, False, True]
    assert found[3] == "StreamStop: no stream block is open"


def test_a_nested_stream_block_is_an_error_and_the_outer_stays_open() -> None:
    rows = stream(RELATION, start_block(7), start_block(9), insert("1", xid=8), STOP)
    assert errors(rows)[2] == "StreamStart: a stream block is open already, and blocks do not nest"
    assert sum(error is None for error in errors(rows)) == 4


def test_two_messages_with_the_same_key_are_refused() -> None:
    rows = [((0, "a"), data) for _, data in stream(RELATION, WIDER)]
    with pytest.raises(ValueError, match=r"have the same sort key 0, 'a'\. Sort by more columns"):
        context_of(rows)
    with pytest.raises(ValueError, match="the order of two messages is ambiguous: b'R' and b'S'"):
        context_of([((0,), data) for _, data in stream(RELATION, start_block(7))])


def test_duplicate_messages_are_ignored() -> None:
    rows = stream(RELATION, start_block(7), insert("1", xid=8), STOP)
    assert errors([*rows, *rows]) == [None] * 8


def test_a_change_with_the_key_of_its_relation_is_an_error() -> None:
    (_, first), (_, second), (_, start) = stream(RELATION, insert("1"), start_block(7))
    assert errors([((0,), first), ((0,), second)])[1] == "Insert: a Relation message has the same sort key 0"
    found = errors([((0,), first), ((1,), start), ((1,), second)])[2]
    assert found == "Insert: a Stream Start or Stream Stop has the same sort key 1"


def test_a_null_key_is_an_error() -> None:
    rows = stream(RELATION, insert("1"))
    found = errors([*rows, ((None,), rows[0][1]), ((None,), rows[1][1])])
    assert found[:2] == [None, None]
    assert found[2:] == ["a column of the sort key is NULL, so the order of the message is unknown"] * 2
    found = errors([(("wal", *key), data) for key, data in [*rows, ((None,), rows[1][1])]])
    assert found == [None, None, "a column of the sort key is NULL, so the order of the message is unknown"]


@pytest.mark.parametrize("late", [WIDER, start_block(7)], ids=["relation", "block"])
def test_messages_missing_in_the_context_are_refused(late: Message) -> None:
    """A message that the context lacks raises ValueError: the messages after it would decode wrongly."""
    context = context_of(stream(RELATION, insert("1")))
    with pytest.raises(ValueError, match=r"at 2 was not in the input when .*: the input must not change"):
        read([((2,), encode_for(late, 4))], context, new_decoder())


@given(st.data())
def test_shuffled_damaged_messages_decode_as_in_order(data: st.DataObject) -> None:
    """UnorderedDecoder gives the same messages and errors as StreamDecoder in stream order."""
    fine = [
        RELATION,
        WIDER,
        replace(RELATION, xid=8),
        insert("1"),
        insert("1", xid=8),
        insert("1", "2", xid=8),
        start_block(7),
        STOP,
        m.Type(oid=20000, namespace="", name="int4"),
        m.Commit(commit_lsn=1, end_lsn=2, commit_time=0),
    ]
    drawn = data.draw(st.lists(st.sampled_from([*(encode_for(one, 4) for one in fine), b"", b"S", b"Rx"])))
    rows: list[tuple[Key, bytes]] = [((place,), one) for place, one in enumerate(drawn)]
    ordered = new_decoder()
    expected: list[tuple[Message, int] | None] = []
    for _, one in rows:
        relation = ordered.relations.get(1)
        width = len(relation.columns) if relation else 0
        try:
            message = ordered.decode(one)
            wrong = isinstance(message, m.Insert) and len(message.new) != width
            expected.append(None if wrong else (message, width))
        except DecodeError:
            expected.append(None)
    context = context_of(data.draw(st.permutations(rows)))
    if not rows:
        return
    shuffled = data.draw(st.permutations(rows))
    for (key, _), found in zip(shuffled, read(shuffled, context, new_decoder()), strict=True):
        right = expected[key[0]]
        if right is None:
            assert isinstance(found, DecodeError)
        else:
            assert isinstance(found, Found)
            assert found.message == right[0]
            assert [len(schema.names) for schema in found.schemas] in ([], [right[1]])


def test_rows_without_a_valid_message_are_null() -> None:
    rows = stream(
        RELATION,
        insert("1"),
        m.Truncate(options=m.TruncateOption.CASCADE, relation_oids=(1, 1)),
        m.Begin(final_lsn=1, commit_time=0, xid=7),
        insert("1", "2"),
    )
    decoder = UnorderedDecoder(context_of(rows), new_decoder())
    data = [None, *(data for _, data in rows), b"?"]
    batch = decoded_batch(decoder.decode([pa.array([9, 0, 1, 2, 3, 4, 9])], pa.array(data, pa.binary())))
    batch.validate(full=True)
    assert batch.schema == DECODED
    none, relation, inserted, truncated, begin, wrong, last = batch.to_pylist()
    assert none == wrong == last == {"message": None, "changes": None}
    assert (relation["message"]["type"], relation["changes"]) == ("Relation", None)
    assert inserted["changes"] == [
        {
            "operation": "Insert",
            "relation": {"oid": 1, "namespace": "public", "name": "t"},
            "key_columns": ["id"],
            "columns": '{"id":[23,-1]}',
            "before": None,
            "after": [("id", "1")],
            "unchanged": [],
        }
    ]
    assert [change["operation"] for change in truncated["changes"]] == ["Truncate", "Truncate"]
    assert (begin["message"]["xid"], begin["changes"]) == (7, None)
    empty = decoder.decode([pa.array([], pa.int64())], pa.array([], pa.binary()))
    assert decoded_batch(empty) == pa.RecordBatch.from_pylist([], DECODED)


def test_out_of_place_messages_give_stream_errors() -> None:
    (error,) = read(stream(insert("1")), context_of([]), new_decoder())
    assert isinstance(error, StreamError)
    assert str(error) == "Insert: no Relation message has come for the OID 1"
