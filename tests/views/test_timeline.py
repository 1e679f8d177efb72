"""Messages are decoded in any order, with what holds at their places."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pgoutput import messages as m
from pgoutput.errors import DecodeError, StreamError
from pgoutput.messages import Message
from pgoutput.stream import StreamDecoder, encode_for
from pgoutput.views import RelationSchema
from pgoutput.views import DECODED, decoded_batch
from pgoutput.views import CONTEXT_TAGS, Key, UnorderedDecoder, Timeline, build_timeline
from tests.codec import corpus

pytestmark = pytest.mark.usefixtures("way")

COLUMN = m.RelationColumn(1, "id", 23, -1)
RELATION = m.Relation(1, "public", "t", m.ReplicaIdentity.DEFAULT, (COLUMN,))
WIDER = replace(RELATION, columns=(COLUMN, replace(COLUMN, flags=0, name="v")))


def new_decoder() -> StreamDecoder:
    return StreamDecoder(4, streaming="parallel")


def stream(*messages: Message) -> list[tuple[Key, bytes]]:
    return [((place,), encode_for(message, 4)) for place, message in enumerate(messages)]


def timeline_of(rows: Iterable[tuple[Key, bytes]]) -> Timeline:
    return build_timeline((row for row in rows if row[1][:1] in CONTEXT_TAGS), new_decoder())


class Found(NamedTuple):
    """A message that is decoded, and the relations that it changes."""

    message: Message
    shapes: list[RelationSchema]


def read(
    rows: Sequence[tuple[Key, bytes | None]], timeline: Timeline, decoder: StreamDecoder
) -> list[Found | DecodeError | None]:
    """What each row is, all of them in one batch."""
    keys = [pa.array(column) for column in zip(*(key for key, _ in rows), strict=True)]
    placed = UnorderedDecoder(timeline, decoder).decode(keys, pa.array([data for _, data in rows], pa.binary()))
    assert not set(placed.errors) & set(placed.changes.rows.tolist())
    found: list[Found | DecodeError | None] = []
    for row, (_, data) in enumerate(rows):
        if row in placed.errors:
            found.append(placed.errors[row])
        elif data is None:
            found.append(None)
        else:
            (message,) = placed.index.messages([row])
            numbers = placed.changes.shape[placed.changes.rows == row].tolist()
            found.append(Found(message, [placed.changes.shapes[number] for number in numbers]))
    return found


def decode(rows: Sequence[tuple[Key, bytes]]) -> list[Found]:
    found = read(rows, timeline_of(rows), new_decoder())
    return [one for one in found if isinstance(one, Found)]


def errors(rows: Sequence[tuple[Key, bytes]]) -> list[str | None]:
    found = read(rows, timeline_of(rows), new_decoder())
    return [str(one) if isinstance(one, DecodeError) else None for one in found]


def insert(*cells: str, xid: int | None = None) -> m.Insert:
    return m.Insert(1, cells, xid=xid)


@pytest.mark.parametrize("name", corpus.CAPTURES)
def test_shuffled_captures_give_the_same(name: str) -> None:
    """Each message as in its order, with the Relation messages that hold there."""
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
    timeline = build_timeline((row for row in rows if row[1][:1] in CONTEXT_TAGS), header.decoder())
    for (key, _), found in zip(rows, read(rows, timeline, header.decoder()), strict=True):
        message, described = expected[key[0]]
        assert isinstance(found, Found)
        assert found.message == message
        if described:
            assert [(one.relation.name, [*one.names]) for one in found.shapes] == described
        else:
            assert [one.relation.oid for one in found.shapes] == [*getattr(message, "relation_oids", ())]


def test_a_relation_holds_from_its_message_to_the_next() -> None:
    rows = stream(RELATION, insert("1"), WIDER, insert("1", "2"), RELATION, insert("1"))
    names = [shape.names for placed in decode(rows) for shape in placed.shapes]
    assert names == [("id",), ("id", "v"), ("id",)]


def test_a_repeated_relation_is_kept_once() -> None:
    """Also in a stream block, where it has an xid."""
    rows = stream(
        RELATION, m.StreamStart(7, True), replace(RELATION, xid=8), insert("1", xid=8), m.StreamStop()
    )
    timeline = timeline_of(rows)
    assert timeline.relations == [RELATION]
    places = timeline.places([pa.array(range(5))])
    assert timeline.in_stream(places).tolist() == [False, False, True, True, True]
    assert len(decode(rows)) == 5


def test_a_type_that_changed_makes_a_new_epoch() -> None:
    typed = replace(RELATION, columns=(replace(COLUMN, type_oid=20000),))
    rows = stream(
        m.Type(20000, "", "int4"), typed, insert("1"), m.Type(20000, "", "text"), typed, insert("1")
    )
    assert [shape.types for placed in decode(rows) for shape in placed.shapes] == [(23,), (25,)]


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
def test_any_key_that_sorts_will_do(key: Callable[[int], Key]) -> None:
    rows = stream(
        RELATION, m.StreamStart(7, True), insert("1", xid=8), m.StreamStop(), WIDER, insert("1", "2")
    )
    placed = [(key(place), data) for (place,), data in rows]
    random.Random(0).shuffle(placed)
    found = dict(zip([key for key, _ in placed], decode(placed), strict=True))
    assert [getattr(found[key(place)].message, "xid", 0) for place in range(6)] == [None, 7, 8, 0, None, None]
    assert [one.names for one in found[key(2)].shapes] == [("id",)]
    assert [one.names for one in found[key(5)].shapes] == [("id", "v")]


def test_what_a_message_needs_and_lacks() -> None:
    rows = stream(insert("1"), RELATION, insert("1", "2"), m.Truncate(0, (1, 2, 3)), insert("1"))
    no, _, wide, truncate, fine = errors(rows)
    assert no == "Insert: no Relation message has come for the OID 1"
    assert wide == "Insert: new has 2 columns, but public.t has 1"
    assert truncate == "Truncate: no Relation message has come for the OID 2"
    assert fine is None


def test_blocks_decide_who_has_an_xid() -> None:
    rows = stream(
        RELATION, m.StreamStart(7, True), insert("1", xid=8), m.StreamStop(), m.Begin(1, 0, 9), insert("1")
    )
    assert [getattr(placed.message, "xid", None) for placed in decode(rows)] == [None, 7, 8, None, 9, None]


def test_damaged_messages_have_no_effect() -> None:
    """As in a stream decoder, so the messages behind them are told to be wrong, or read as before."""
    rows = stream(RELATION, m.StreamStart(7, True), insert("1", xid=8), m.StreamStop(), WIDER, insert("1"))
    assert errors(rows)[5] == "Insert: new has 1 columns, but public.t has 2"
    rows[4] = (rows[4][0], rows[4][1][:-1])
    assert [error is None for error in errors(rows)] == [True, True, True, True, False, True]
    rows[1] = (rows[1][0], b"S")
    found = errors(rows)
    assert [error is None for error in found] == [True, False, False, False, False, True]
    assert found[3] == "StreamStop: no stream block is open"


def test_a_block_in_a_block_is_told_and_stays_open() -> None:
    rows = stream(
        RELATION, m.StreamStart(7, True), m.StreamStart(9, True), insert("1", xid=8), m.StreamStop()
    )
    assert errors(rows)[2] == "StreamStart: a stream block is open already, and blocks do not nest"
    assert sum(error is None for error in errors(rows)) == 4


def test_two_messages_in_one_place_are_refused() -> None:
    rows = [((0, "a"), data) for _, data in stream(RELATION, WIDER)]
    with pytest.raises(ValueError, match="have the key 0, 'a'; LSNs do not do"):
        timeline_of(rows)
    with pytest.raises(ValueError, match="the order is not one: two messages, b'R' and b'S'"):
        timeline_of([((0,), data) for _, data in stream(RELATION, m.StreamStart(7, True))])


def test_the_same_message_twice_does_no_harm() -> None:
    rows = stream(RELATION, m.StreamStart(7, True), insert("1", xid=8), m.StreamStop())
    assert errors([*rows, *rows]) == [None] * 8


def test_a_change_in_the_place_of_what_it_needs_is_told() -> None:
    (_, first), (_, second), (_, start) = stream(RELATION, insert("1"), m.StreamStart(7, True))
    assert errors([((0,), first), ((0,), second)])[1] == "Insert: a Relation message has the same key 0"
    found = errors([((0,), first), ((1,), start), ((1,), second)])[2]
    assert found == "Insert: a stream block begins or ends at the same key 1"


def test_a_place_that_is_not_known_is_told() -> None:
    rows = stream(RELATION, insert("1"))
    found = errors([*rows, ((None,), rows[0][1]), ((None,), rows[1][1])])
    assert found[:2] == [None, None]
    assert found[2:] == ["NULL says nothing of where the message stands"] * 2
    found = errors([(("wal", *key), data) for key, data in [*rows, ((None,), rows[1][1])]])
    assert found == [None, None, "NULL says nothing of where the message stands"]


@pytest.mark.parametrize("late", [WIDER, m.StreamStart(7, True)], ids=["relation", "block"])
def test_a_stream_that_is_not_the_timelines_is_refused(late: Message) -> None:
    """No mode hides it: what comes behind would be read wrongly."""
    timeline = timeline_of(stream(RELATION, insert("1")))
    with pytest.raises(ValueError, match=r"at 2 was not there when .*: what is decoded must stay the same"):
        read([((2,), encode_for(late, 4))], timeline, new_decoder())


@given(st.data())
def test_any_order_of_any_damage_is_as_in_order(data: st.DataObject) -> None:
    """A stream decoder that reads in order gives the same, and finds the same rows wrong."""
    fine = [
        RELATION,
        WIDER,
        replace(RELATION, xid=8),
        insert("1"),
        insert("1", xid=8),
        insert("1", "2", xid=8),
        m.StreamStart(7, True),
        m.StreamStop(),
        m.Type(20000, "", "int4"),
        m.Commit(1, 2, 0),
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
    timeline = timeline_of(data.draw(st.permutations(rows)))
    if not rows:
        return
    shuffled = data.draw(st.permutations(rows))
    for (key, _), found in zip(shuffled, read(shuffled, timeline, new_decoder()), strict=True):
        right = expected[key[0]]
        if right is None:
            assert isinstance(found, DecodeError)
        else:
            assert isinstance(found, Found)
            assert found.message == right[0]
            assert [len(shape.names) for shape in found.shapes] in ([], [right[1]])


def test_rows_of_no_message_are_null() -> None:
    rows = stream(RELATION, insert("1"), m.Truncate(1, (1, 1)), m.Begin(1, 0, 7), insert("1", "2"))
    decoder = UnorderedDecoder(timeline_of(rows), new_decoder())
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


def test_errors_are_stream_errors_where_a_message_stands_wrong() -> None:
    (error,) = read(stream(insert("1")), timeline_of([]), new_decoder())
    assert isinstance(error, StreamError)
    assert str(error) == "Insert: no Relation message has come for the OID 1"
