"""The stateful readers of a stream: StreamDecoder, Transactions and Tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from logicalrep import messages as m, v3, v4
from logicalrep.errors import DecodeError, StreamError
from logicalrep.messages import UNCHANGED, Cell, Message, ReplicaIdentity
from logicalrep.stream import Change, StreamDecoder, Table, Tables, Transaction, Transactions
from logicalrep.versions import CODECS
from tests.messages import STOP, make_column, make_relation, start_block
from tests.versions import OLDEST, PLAIN, needs_version


def relation(*names: str, key: tuple[str, ...] = ("id",), identity: str = "d", oid: int = 1) -> m.Relation:
    columns = tuple(make_column(name, key=name in key) for name in names)
    return make_relation(*columns, oid=oid, name=f"t{oid}", identity=ReplicaIdentity(identity))


T = relation("id", "v")


KNOWN = ", ".join(map(str, CODECS))

# StreamDecoder


@pytest.mark.parametrize(
    ("version", "options", "text"),
    [
        (0, {}, f"there is no protocol version 0; there are {KNOWN}"),
        (99, {}, f"there is no protocol version 99; there are {KNOWN}"),
        (4, {"streaming": "yes"}, "streaming is one of off, on, parallel, not 'yes'"),
        pytest.param(
            1, {"streaming": "on"}, "streaming = on needs protocol version 2, not 1", marks=needs_version(1)
        ),
        (3, {"streaming": "parallel"}, "streaming = parallel needs protocol version 4, not 3"),
    ],
)
def test_invalid_options_are_refused(version: int, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        StreamDecoder(version, **options)


@pytest.mark.parametrize("version", sorted({OLDEST, 2}))
def test_two_phase_messages_in_an_earlier_version(version: int) -> None:
    prepared = [
        m.BeginPrepare(prepare_lsn=1, end_lsn=2, prepare_time=3, xid=4, gid="g"),
        m.Prepare(prepare_lsn=1, end_lsn=2, prepare_time=3, xid=4, gid="g"),
        m.CommitPrepared(commit_lsn=1, end_lsn=2, commit_time=3, xid=4, gid="g"),
        m.RollbackPrepared(
            prepare_end_lsn=1, rollback_end_lsn=2, prepare_time=3, rollback_time=4, xid=5, gid="g"
        ),
        m.StreamPrepare(prepare_lsn=1, end_lsn=2, prepare_time=3, xid=4, gid="g"),
    ]
    for message in prepared:
        raw = v3.encode(message)
        items: Any = memoryview(raw).cast("c")  # whose first item is b"b", not 98
        for data in (raw, bytearray(raw), memoryview(raw), items):
            assert message == StreamDecoder(version, two_phase=True).decode(data)
        with pytest.raises(DecodeError, match=rf"StreamDecoder\({version}, two_phase=True\)"):
            StreamDecoder(version).decode(raw)
    with pytest.raises(DecodeError, match=r"^no bytes"):
        StreamDecoder(version, two_phase=True).decode(b"")
    with pytest.raises(TypeError):
        StreamDecoder(version, two_phase=True).decode("b")  # type: ignore[arg-type]


@needs_version(1)
def test_two_phase_adds_no_other_messages_of_later_versions() -> None:
    start = v4.encode(m.StreamStart(xid=1, first_stream_segment=True))
    with pytest.raises(DecodeError, match=r"^protocol version 1 has no Stream Start"):
        StreamDecoder(1, two_phase=True).decode(start)


def test_messages_have_an_xid_in_stream_blocks_only() -> None:
    decoder = StreamDecoder(2, streaming="on")
    insert, streamed = m.Insert(relation_oid=1, new=("a",)), m.Insert(relation_oid=1, new=("a",), xid=7)
    assert insert == decoder.decode(v4.encode(insert))
    decoder.decode(v4.encode(m.StreamStart(xid=7, first_stream_segment=True)))
    assert streamed == decoder.decode(v4.encode(streamed))
    decoder.decode(v4.encode(m.StreamStop()))
    assert insert == decoder.decode(v4.encode(insert))


def test_stream_blocks_do_not_nest_and_errors_leave_the_state_unchanged() -> None:
    decoder = StreamDecoder(4, streaming="on")
    with pytest.raises(StreamError, match=r"^StreamStop: no stream block is open$"):
        decoder.decode(b"E")
    assert decoder.decode(v4.encode(insert("a"))) == insert("a")  # still outside a stream block
    decoder.decode(v4.encode(m.StreamStart(xid=7, first_stream_segment=True)))
    with pytest.raises(StreamError, match=r"^StreamStart: a stream block is open already") as caught:
        decoder.decode(v4.encode(m.StreamStart(xid=8, first_stream_segment=True)))
    assert (caught.value.message, caught.value.field, caught.value.offset) == ("StreamStart", None, 0)
    for garbage in (b"", b"E\0", b"S", b"R\0\0", b"\xff"):
        with pytest.raises(DecodeError):
            decoder.decode(garbage)
    assert decoder.in_stream
    assert (decoder.relations, decoder.types) == ({}, {})


def test_relations_and_types_are_replaced() -> None:
    decoder = StreamDecoder(OLDEST)
    later = relation("id", "v", "w")
    for known in (T, later):
        assert known == decoder.decode(PLAIN.encode(known))
        assert {1: known} == decoder.relations
    mood = m.Type(oid=20_000, namespace="public", name="mood")
    decoder.decode(PLAIN.encode(mood))
    assert {20_000: mood} == decoder.types


def test_stream_abort_has_lsn_and_time_with_streaming_parallel() -> None:
    short, long = m.StreamAbort(xid=1, subxid=1), m.StreamAbort(xid=1, subxid=1, abort_lsn=2, abort_time=3)
    assert short == StreamDecoder(4, streaming="on").decode(v4.encode(short))
    assert long == StreamDecoder(4, streaming="parallel").decode(v4.encode(long))
    with pytest.raises(DecodeError):
        StreamDecoder(4, streaming="on").decode(v4.encode(long))


# Transactions

BEGIN = m.Begin(final_lsn=1, commit_time=2, xid=7)
COMMIT = m.Commit(commit_lsn=1, end_lsn=2, commit_time=3)


def begin(xid: int) -> m.Begin:
    return replace(BEGIN, xid=xid)


def stream_commit(xid: int) -> m.StreamCommit:
    return m.StreamCommit(xid=xid, commit_lsn=1, end_lsn=2, commit_time=3)


def prepared(kind: Callable[..., Message], xid: int, gid: str) -> Message:
    """Return a message of a class that prepares a transaction, or begins one."""
    return kind(prepare_lsn=1, end_lsn=2, prepare_time=3, xid=xid, gid=gid)


def commit_prepared(xid: int, gid: str) -> m.CommitPrepared:
    return m.CommitPrepared(commit_lsn=1, end_lsn=2, commit_time=3, xid=xid, gid=gid)


def rollback_prepared(xid: int, gid: str) -> m.RollbackPrepared:
    return m.RollbackPrepared(
        prepare_end_lsn=1, rollback_end_lsn=2, prepare_time=3, rollback_time=4, xid=xid, gid=gid
    )


class Feed:
    """Feeds messages to a `Transactions` whose decoder knows the relations 1 and 2."""

    def __init__(self) -> None:
        self.decoder = StreamDecoder(4, streaming="on")
        self.transactions = Transactions(self.decoder)
        for known in (T, relation("id", oid=2)):
            self(known)

    def __call__(self, *fed: Message) -> list[Transaction]:
        """Encode, decode and feed the messages; return the transactions that these messages commit."""
        found = [self.transactions.feed(self.decoder.decode(v4.encode(message))) for message in fed]
        return [transaction for transaction in found if transaction is not None]


def insert(value: str, xid: int | None = None) -> m.Insert:
    return m.Insert(relation_oid=1, new=(value, None), xid=xid)


def changes(transaction: Transaction) -> list[Message]:
    return [change.message for change in transaction.changes]


def test_a_transaction_with_origin_truncate_and_logical_message() -> None:
    feed = Feed()
    truncate = m.Truncate(options=m.TruncateOption.CASCADE, relation_oids=(2, 1))
    logical = m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=5, prefix="p", content=b"x")
    origin = m.Origin(origin_lsn=9, name="o")
    (committed,) = feed(
        m.Begin(final_lsn=10, commit_time=11, xid=7),
        origin,
        insert("a"),
        truncate,
        logical,
        m.Commit(commit_lsn=10, end_lsn=12, commit_time=11),
    )
    t2 = relation("id", oid=2)
    expected = [Change(insert("a"), (T,)), Change(truncate, (t2, T)), Change(logical, ())]
    assert Transaction(7, 10, 12, 11, expected, origin) == committed
    assert feed.transactions.open == 0


def test_a_change_keeps_the_relation_in_effect() -> None:
    feed = Feed()
    later = relation("id", "v", "w")
    (committed,) = feed(
        BEGIN,
        insert("a"),
        later,
        m.Insert(relation_oid=1, new=("b", None, None)),
        COMMIT,
    )
    assert [(T,), (later,)] == [change.relations for change in committed.changes]


def test_empty_transactions() -> None:
    feed = Feed()
    assert [
        changes(committed) for committed in feed(BEGIN, COMMIT, start_block(8), STOP, stream_commit(8))
    ] == [
        [],
        [],
    ]
    assert feed(prepared(m.BeginPrepare, 9, "g"), prepared(m.Prepare, 9, "g")) == []
    assert [committed.gid for committed in feed(commit_prepared(9, "g"))] == ["g"]


def test_non_transactional_messages_belong_to_no_transaction() -> None:
    feed = Feed()
    assert (
        feed(
            m.LogicalMessage(flags=m.MessageFlag(0), lsn=1, prefix="p", content=b"x"),
            T,
            m.Type(oid=20_000, namespace="", name="t"),
        )
        == []
    )
    (committed,) = feed(
        BEGIN,
        m.LogicalMessage(flags=m.MessageFlag(0), lsn=1, prefix="p", content=b"x"),
        COMMIT,
    )
    assert committed.changes == []


def test_stream_blocks_interleave_with_each_other_and_with_transactions() -> None:
    feed = Feed()
    assert feed(start_block(7), insert("7a", 7), STOP) == []
    assert feed(start_block(8), insert("8a", 8), STOP) == []
    assert feed.transactions.open == 2
    (plain,) = feed(begin(9), insert("9a"), COMMIT)
    assert feed(start_block(7, first=False), insert("7b", 70), STOP) == []
    (eight,) = feed(m.StreamCommit(xid=8, commit_lsn=4, end_lsn=5, commit_time=6))
    (seven,) = feed(m.StreamCommit(xid=7, commit_lsn=7, end_lsn=8, commit_time=9))
    assert [insert("9a")] == changes(plain)
    assert [insert("8a", 8)] == changes(eight)
    assert [insert("7a", 7), insert("7b", 70)] == changes(seven)
    assert (seven.xid, seven.commit_lsn, seven.end_lsn, seven.commit_time) == (7, 7, 8, 9)
    assert feed.transactions.open == 0


def test_rolling_back_a_savepoint_drops_its_changes_and_keeps_its_logical_messages() -> None:
    feed = Feed()
    logical = m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=1, prefix="p", content=b"x", xid=7)
    feed(start_block(7), insert("a", 7), insert("b", 70), logical, insert("c", 71), STOP)
    assert feed(m.StreamAbort(xid=7, subxid=70), m.StreamAbort(xid=7, subxid=99)) == []
    assert feed.transactions.open == 1
    feed(start_block(7, first=False), insert("d", 70), STOP)
    (committed,) = feed(stream_commit(7))
    assert [insert("a", 7), logical, insert("c", 71), insert("d", 70)] == changes(committed)


def test_stream_abort_of_a_savepoint_that_was_not_streamed_is_ignored() -> None:
    feed = Feed()
    assert feed(m.StreamAbort(xid=7, subxid=8)) == []
    assert feed.transactions.open == 0


def test_stream_abort_of_the_transaction_ends_it() -> None:
    feed = Feed()
    assert feed(start_block(7), insert("a", 7), STOP, m.StreamAbort(xid=7, subxid=7)) == []
    assert feed.transactions.open == 0
    with pytest.raises(StreamError, match=r"^StreamCommit: transaction 7 has not had its first block$"):
        feed(stream_commit(7))
    (committed,) = feed(start_block(7), insert("b", 7), STOP, stream_commit(7))
    assert [insert("b", 7)] == changes(committed)


def test_prepared_transactions_end_by_their_gid() -> None:
    feed = Feed()
    feed(prepared(m.BeginPrepare, 7, "a"), insert("a"), prepared(m.Prepare, 7, "a"))
    feed(start_block(8), insert("b", 8), STOP, prepared(m.StreamPrepare, 8, "b"))
    feed(prepared(m.BeginPrepare, 9, "c"), insert("c"), prepared(m.Prepare, 9, "c"))
    assert feed.transactions.open == 3
    assert feed(rollback_prepared(7, "a")) == []
    (b,) = feed(m.CommitPrepared(commit_lsn=4, end_lsn=5, commit_time=6, xid=8, gid="b"))
    (c,) = feed(m.CommitPrepared(commit_lsn=4, end_lsn=5, commit_time=6, xid=9, gid="c"))
    assert Transaction(8, 4, 5, 6, [Change(insert("b", 8), (T,))], None, "b") == b
    assert Transaction(9, 4, 5, 6, [Change(insert("c"), (T,))], None, "c") == c
    assert feed.transactions.open == 0


def test_rollback_prepared_of_an_unknown_gid_is_accepted() -> None:
    """The slot may start after the Prepare (see apply_handle_rollback_prepared in PostgreSQL's worker.c)."""
    assert Feed()(rollback_prepared(7, "unknown")) == []


def test_open_counts_unfinished_transactions() -> None:
    feed = Feed()
    counts = []
    for message in (
        begin(3),
        COMMIT,
        start_block(7),
        STOP,
        prepared(m.BeginPrepare, 8, "g"),
        prepared(m.Prepare, 8, "g"),
        stream_commit(7),
        commit_prepared(8, "g"),
    ):
        feed(message)
        counts.append(feed.transactions.open)
    assert counts == [1, 0, 1, 1, 2, 2, 1, 0]


PREPARING = (prepared(m.BeginPrepare, 7, "g"),)
BLOCK = (start_block(7),)
STREAMED = (*BLOCK, STOP)
PREPARED = (*PREPARING, prepared(m.Prepare, 7, "g"))

MISPLACED: list[tuple[tuple[Message, ...], Message, str]] = [
    ((), COMMIT, "Commit: no transaction is open"),
    ((), prepared(m.Prepare, 7, "g"), "Prepare: no transaction is open"),
    ((), insert("a"), "Insert: no transaction is open"),
    ((), m.Truncate(options=m.TruncateOption(0), relation_oids=(1,)), "Truncate: no transaction is open"),
    ((), m.Origin(origin_lsn=1, name="o"), "Origin: no transaction is open"),
    (
        (),
        m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=1, prefix="", content=b""),
        "LogicalMessage: no transaction is open",
    ),
    ((), start_block(7, first=False), "StreamStart: transaction 7 has not had its first block"),
    ((), stream_commit(7), "StreamCommit: transaction 7 has not had its first block"),
    ((), m.StreamAbort(xid=7, subxid=7), "StreamAbort: transaction 7 has not had its first block"),
    ((), prepared(m.StreamPrepare, 7, "g"), "StreamPrepare: transaction 7 has not had its first block"),
    (
        (),
        commit_prepared(7, "g"),
        "CommitPrepared: no transaction is prepared as 'g': the stream has no Prepare with this gid",
    ),
    ((BEGIN,), begin(8), "Begin: transaction 7 is still open"),
    ((BEGIN,), prepared(m.BeginPrepare, 8, "h"), "BeginPrepare: transaction 7 is still open"),
    ((BEGIN,), start_block(8), "StreamStart: transaction 7 is still open"),
    ((BEGIN,), rollback_prepared(8, "h"), "RollbackPrepared: transaction 7 is still open"),
    ((BEGIN,), commit_prepared(8, "h"), "CommitPrepared: transaction 7 is still open"),
    (
        (BEGIN,),
        prepared(m.Prepare, 7, "g"),
        "Prepare: must follow BeginPrepare, but Begin opened transaction 7",
    ),
    (PREPARING, COMMIT, "Commit: must follow Begin, but BeginPrepare opened transaction 7"),
    (BLOCK, COMMIT, "Commit: must follow Begin, but StreamStart opened transaction 7"),
    (BLOCK, begin(8), "Begin: transaction 7 is still open"),
    (BLOCK, stream_commit(7), "StreamCommit: transaction 7 is still open"),
    (BLOCK, m.StreamAbort(xid=7, subxid=7), "StreamAbort: transaction 7 is still open"),
    (BLOCK, prepared(m.StreamPrepare, 7, "g"), "StreamPrepare: transaction 7 is still open"),
    (STREAMED, start_block(7), "StreamStart: transaction 7 has had its first block already"),
    (
        (*PREPARED, prepared(m.BeginPrepare, 8, "g")),
        prepared(m.Prepare, 8, "g"),
        "Prepare: a transaction is prepared as 'g' already",
    ),
    (
        (*PREPARED, start_block(8), STOP),
        prepared(m.StreamPrepare, 8, "g"),
        "StreamPrepare: a transaction is prepared as 'g' already",
    ),
    ((BEGIN,), m.Insert(relation_oid=3, new=()), "Insert: no Relation message has come for the OID 3"),
    (
        (BEGIN,),
        m.Truncate(options=m.TruncateOption(0), relation_oids=(1, 3)),
        "Truncate: no Relation message has come for the OID 3",
    ),
    ((BEGIN,), m.Insert(relation_oid=1, new=("a",)), "Insert: new has 1 columns, but public.t1 has 2"),
    (
        (BEGIN,),
        m.Update(relation_oid=1, new=("a", "b"), key=("a",)),
        "Update: key has 1 columns, but public.t1 has 2",
    ),
    ((BEGIN,), m.Delete(relation_oid=1, old=("a",) * 3), "Delete: old has 3 columns, but public.t1 has 2"),
]


@pytest.mark.parametrize(
    ("before", "message", "text"), MISPLACED, ids=[f"{i}-{row[2]}" for i, row in enumerate(MISPLACED)]
)
def test_an_out_of_place_message_raises_stream_error(
    before: tuple[Message, ...], message: Message, text: str
) -> None:
    feed = Feed()
    feed(*before)
    open_before = feed.transactions.open
    with pytest.raises(StreamError, match=f"^{re.escape(text)}$") as caught:
        feed.transactions.feed(message)
    assert type(message).__name__ == caught.value.message
    assert open_before == feed.transactions.open
    with pytest.raises(
        StreamError, match=f"^{re.escape(text)}$"
    ):  # not processed: fails again with the same error
        feed.transactions.feed(message)


# Tables


def rows(table: Table) -> list[tuple[Cell, ...]]:
    return sorted((tuple(row.values()) for row in table), key=repr)


def applied(relation: m.Relation, *messages: m.Insert | m.Update | m.Delete) -> Table:
    table = Table(relation)
    for message in messages:
        table.apply(message, relation)
    return table


FULL = relation("id", "v", key=("id", "v"), identity="f")
INSERTED = [m.Insert(relation_oid=1, new=row) for row in (("1", "a"), ("2", "b"), ("3", "c"))]
LONG, EMPTY = m.Insert(relation_oid=1, new=("1", "long")), m.Insert(relation_oid=1, new=())
APPLIED: dict[str, tuple[m.Relation, list[m.Insert | m.Update | m.Delete], list[tuple[Cell, ...]]]] = {
    "rows are found by key": (
        T,
        [*INSERTED, m.Update(relation_oid=1, new=("2", "B")), m.Delete(relation_oid=1, key=("3", None))],
        [("1", "a"), ("2", "B")],
    ),
    "an update changes the key": (
        T,
        [*INSERTED[:2], m.Update(relation_oid=1, new=("9", "b"), key=("2", None))],
        [("1", "a"), ("9", "b")],
    ),
    "unchanged values are kept": (
        T,
        [
            LONG,
            m.Update(relation_oid=1, new=("1", UNCHANGED)),
            m.Update(relation_oid=1, new=("2", UNCHANGED), key=("1", None)),
        ],
        [("2", "long")],
    ),
    "unchanged values come from the old tuple": (
        FULL,
        [LONG, m.Update(relation_oid=1, new=("2", UNCHANGED), old=("1", "long"))],
        [("2", "long")],
    ),
    "rows without columns": (
        relation(key=(), identity="f"),
        [EMPTY, EMPTY, EMPTY, m.Delete(relation_oid=1, old=())],
        [(), ()],
    ),
    "no replica identity": (
        relation("id", "v", key=(), identity="n"),
        [INSERTED[0], INSERTED[0]],
        [("1", "a"), ("1", "a")],
    ),
    "NULL, empty text and binary are different keys": (
        relation("v", key=("v",), identity="f"),
        [
            *(m.Insert(relation_oid=1, new=(cell,)) for cell in (None, "", b"")),
            m.Delete(relation_oid=1, old=("",)),
        ],
        [(None,), (b"",)],
    ),
    "an update of an unknown row inserts it, and a delete is ignored": (
        T,
        [
            m.Update(relation_oid=1, new=("1", "a")),
            m.Update(relation_oid=1, new=("2", UNCHANGED)),
            m.Update(relation_oid=1, new=("4", "d"), key=("3", None)),
            m.Delete(relation_oid=1, key=("5", None)),
        ],
        [("1", "a"), ("2", UNCHANGED), ("4", "d")],
    ),
}


@pytest.mark.parametrize("case", APPLIED)
def test_changes_are_applied_to_rows(case: str) -> None:
    relation, changes, expected = APPLIED[case]
    table = applied(relation, *changes)
    assert (rows(table), len(table)) == (expected, len(expected))


def test_equal_rows_are_kept_as_often_as_inserted() -> None:
    same = m.Insert(relation_oid=1, new=("1", None))
    table = applied(FULL, same, same, same, m.Delete(relation_oid=1, old=("1", None)))
    assert rows(table) == [("1", None)] * 2
    table.apply(m.Update(relation_oid=1, new=("1", "x"), old=("1", None)), FULL)
    assert rows(table) == [("1", "x"), ("1", None)]


def test_columns_may_be_added_and_dropped() -> None:
    wider, narrower = relation("id", "v", "w"), relation("id", "w")
    table = applied(T, m.Insert(relation_oid=1, new=("1", "a")))
    table.apply(m.Insert(relation_oid=1, new=("2", "b", "c")), wider)
    assert rows(table) == [("1", "a", None), ("2", "b", "c")]
    table.apply(m.Update(relation_oid=1, new=("1", "z")), narrower)
    assert rows(table) == [("1", "z"), ("2", "c")]
    assert narrower is table.relation


def test_rows_are_reindexed_when_the_key_changes() -> None:
    by_v = relation("id", "v", key=("v",), identity="i")
    table = applied(T, m.Insert(relation_oid=1, new=("1", "a")), m.Insert(relation_oid=1, new=("2", "b")))
    table.apply(m.Update(relation_oid=1, new=("3", "b")), by_v)
    assert rows(table) == [("1", "a"), ("3", "b")]
    table.apply(m.Delete(relation_oid=1, old=("1", "a")), FULL)
    assert rows(table) == [("3", "b")]


def test_truncate_clears_its_relations_and_logical_messages_change_nothing() -> None:
    t2, t3 = relation("id", oid=2), relation("id", oid=3)
    tables = Tables()
    tables.apply(
        Transaction(
            7,
            1,
            2,
            3,
            [
                Change(m.Insert(relation_oid=1, new=("1", "a")), (T,)),
                Change(m.Insert(relation_oid=2, new=("1",)), (t2,)),
                Change(m.Insert(relation_oid=3, new=("1",)), (t3,)),
                Change(m.Truncate(options=m.TruncateOption(0), relation_oids=(1, 2)), (T, t2)),
                Change(
                    m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=1, prefix="", content=b""), ()
                ),
                Change(m.Insert(relation_oid=2, new=("2",)), (t2,)),
            ],
        )
    )
    assert {oid: rows(table) for oid, table in tables.items()} == {1: [], 2: [("2",)], 3: [("1",)]}
