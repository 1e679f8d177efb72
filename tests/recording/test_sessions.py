"""A new session voids open transactions, keeps prepared transactions, and stores no transaction twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from logicalrep import messages as m
from logicalrep.messages import Message
from logicalrep.recording import Metadata, SegmentWriter, SessionStart, find_inconsistencies
from logicalrep.stream import Transaction, encode_for
from tests.messages import STOP, make_column, make_relation, start_block, transaction_of
from tests.recording import recordings
from tests.recording.recordings import PARALLEL, record

T = make_relation(make_column("id", key=True))
BEGIN, COMMIT = transaction_of(100, 5)
WHOLE = (BEGIN, m.Insert(relation_oid=1, new=("whole",)), COMMIT)
BLOCKS = (
    *(
        start_block(7),
        m.Insert(relation_oid=1, new=("kept",), xid=7),
        m.Insert(relation_oid=1, new=("rolled back",), xid=8),
        STOP,
    ),
    *(
        m.StreamAbort(xid=7, subxid=8, abort_lsn=180, abort_time=2),
        start_block(7, first=False),
        m.Insert(relation_oid=1, new=("late",), xid=7),
        STOP,
    ),
)
STREAMED = (*BLOCKS, m.StreamCommit(xid=7, commit_lsn=200, end_lsn=210, commit_time=2))
STREAM_PREPARED = (*BLOCKS, m.StreamPrepare(prepare_lsn=200, end_lsn=210, prepare_time=2, xid=7, gid="s"))
PREPARED = (
    m.BeginPrepare(prepare_lsn=300, end_lsn=310, prepare_time=3, xid=9, gid="g"),
    m.Insert(relation_oid=1, new=("prepared",)),
    m.Prepare(prepare_lsn=300, end_lsn=310, prepare_time=3, xid=9, gid="g"),
)
COMMIT_PREPARED = m.CommitPrepared(commit_lsn=400, end_lsn=410, commit_time=4, xid=9, gid="g")
ROLLBACK_PREPARED = m.RollbackPrepared(
    prepare_end_lsn=310, rollback_end_lsn=410, prepare_time=3, rollback_time=4, xid=9, gid="g"
)
MESSAGE = m.LogicalMessage(flags=m.MessageFlag(0), lsn=500, prefix="prefix", content=b"content")


def rows(folder: Path) -> list[tuple[int, list[object]]]:
    """Return xid and inserted values of each committed transaction of a recording."""
    return [(one.xid, inserted(one)) for one in recordings.committed(folder)]


def inserted(transaction: Transaction) -> list[object]:
    return [change.message.new[0] for change in transaction.changes if isinstance(change.message, m.Insert)]


def encoded(*messages: Message) -> list[bytes]:
    return [encode_for(one, 4) for one in messages]


def is_sound(folder: Path, said: list[Metadata]) -> None:
    assert not list(find_inconsistencies(said))
    for path in folder.glob("*.parquet"):
        recordings.committed(path)  # raises no error: a valid stream by itself
    assert not [path for path in folder.iterdir() if path.suffix != ".parquet"]


@pytest.mark.parametrize("cut", [1, 2, 100])
@pytest.mark.parametrize(
    ("transaction", "committed"),
    [
        (WHOLE, (5, ["whole"])),
        (STREAMED, (7, ["kept", "late"])),
        ((*PREPARED, COMMIT_PREPARED), (9, ["prepared"])),
        (
            (*STREAM_PREPARED, m.CommitPrepared(commit_lsn=400, end_lsn=410, commit_time=4, xid=7, gid="s")),
            (7, ["kept", "late"]),
        ),
    ],
    ids=["whole", "streamed", "prepared", "streamed and prepared"],
)
def test_transactions_are_recorded_once_wherever_the_connection_breaks(
    tmp_path: Path, cut: int, transaction: tuple[Message, ...], committed: tuple[int, list[str]]
) -> None:
    for broke in range(len(transaction) + 1):
        folder = tmp_path / str(broke)
        folder.mkdir()
        if broke:
            record(folder, T, *transaction[:broke], cut=cut)
        said = record(folder, T, *transaction, cut=cut)
        assert rows(folder) == [committed]
        assert sum(one.transactions for one in said) == 1
        assert {one.session for one in said} == ({1, 2} if broke else {1})
        is_sound(folder, said)


def test_transactions_voided_by_a_new_session_are_stored_but_have_no_end(tmp_path: Path) -> None:
    """The messages of the voided transaction are stored, but no metadata lists an end of the transaction."""
    first = record(tmp_path, T, BEGIN, m.Insert(relation_oid=1, new=("void",)))
    assert [(one.transactions, one.ends, one.end_lsn) for one in first] == [(0, (), 0)]
    assert [(part.begin, part.xid, part.changes) for part in first[0].parts] == [(1, 5, 1)]
    second = record(tmp_path, T, *WHOLE)[1:]
    assert [(one.transactions, one.parts, one.ends) for one in second] == [(1, (), ())]
    assert [(one.first_position, one.keyframe) for one in second] == [(3, 0)]
    assert recordings.stored(tmp_path) == encoded(
        T, BEGIN, m.Insert(relation_oid=1, new=("void",)), T, *WHOLE
    )


def test_later_sessions_can_end_prepared_transactions(tmp_path: Path) -> None:
    record(tmp_path, T, *STREAM_PREPARED, *PREPARED, cut=4)
    record(tmp_path, T, *transaction_of(320, 6))
    said = record(
        tmp_path,
        COMMIT_PREPARED,
        m.RollbackPrepared(
            prepare_end_lsn=210, rollback_end_lsn=430, prepare_time=2, rollback_time=4, xid=7, gid="s"
        ),
    )
    assert rows(tmp_path) == [(6, []), (9, ["prepared"])]
    is_sound(tmp_path, said)
    last = said[-1]
    assert (last.session, last.prepared) == (3, ())
    assert [(end.type, end.gid, end.begin, end.segments, end.rolled_back) for end in last.ends] == [
        ("CommitPrepared", "g", 10, (3, 4), ()),
        ("RollbackPrepared", "s", 1, (1, 2, 3), (8,)),
    ]
    at: dict[str, Any] = {"prepare_lsn": 300, "end_lsn": 310, "prepare_time": 3, "xid": 9, "gid": "g"}
    prepared = [
        *(
            m.BeginPrepare(prepare_lsn=200, end_lsn=210, prepare_time=2, xid=7, gid="s"),
            m.Prepare(prepare_lsn=200, end_lsn=210, prepare_time=2, xid=7, gid="s"),
        ),
        *(m.BeginPrepare(**at), m.Prepare(**at)),
    ]
    assert recordings.decoded(tmp_path / "0000000006.parquet")[: last.keyframe] == prepared


def test_resent_transactions_are_not_stored_again(tmp_path: Path) -> None:
    """The server sends a stored transaction again that was not acknowledged."""
    everything = (T, *WHOLE, *PREPARED, COMMIT_PREPARED, MESSAGE)
    record(tmp_path, *everything)
    said = record(tmp_path, T, *WHOLE, MESSAGE)
    assert recordings.stored(tmp_path) == encoded(*everything, T)
    assert [(one.transactions, one.end_lsn) for one in said] == [(2, 500), (0, 500)]
    assert rows(tmp_path) == [(5, ["whole"]), (9, ["prepared"])]
    is_sound(tmp_path, said)


def test_a_transaction_that_commits_right_after_a_logical_message_is_stored(tmp_path: Path) -> None:
    """A logical message's LSN is the end of its WAL record, at which the record of a commit can begin."""
    message = m.LogicalMessage(flags=m.MessageFlag(0), lsn=100, prefix="prefix", content=b"content")
    record(tmp_path, message)
    said = record(tmp_path, message, T, *WHOLE)
    assert recordings.stored(tmp_path) == encoded(message, T, *WHOLE)
    is_sound(tmp_path, said)


@pytest.mark.parametrize(
    "again",
    [
        WHOLE,
        (MESSAGE,),
        (COMMIT_PREPARED,),
        (ROLLBACK_PREPARED,),
        (
            BEGIN,
            m.Origin(origin_lsn=1, name="o"),
            m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=99, prefix="", content=b""),
            m.Truncate(options=m.TruncateOption(0), relation_oids=(1,)),
            COMMIT,
        ),
    ],
    ids=lambda again: type(again[0]).__name__,
)
def test_resent_transactions_alone_make_no_segment(tmp_path: Path, again: tuple[Message, ...]) -> None:
    before = record(tmp_path, T, *WHOLE, *PREPARED, COMMIT_PREPARED, MESSAGE)
    start = SessionStart(session=2, number=2, position=before[0].next_position, lsn=before[0].end_lsn)
    writer = SegmentWriter(tmp_path, PARALLEL, start)
    writer.write(recordings.wrapped(*again), 0)
    writer.rotate()
    assert [path.name for path in tmp_path.iterdir()] == ["0000000001.parquet"]
    later = (T, *transaction_of(500, 11, m.Insert(relation_oid=1, new=("new",)), time=9))
    writer.write(recordings.wrapped(*later), 0)
    writer.rotate()
    assert recordings.stored(tmp_path / "0000000002.parquet") == encoded(*later)
    assert rows(tmp_path)[-1] == (11, ["new"])


def test_a_resent_prepare_is_not_stored_again(tmp_path: Path) -> None:
    record(tmp_path, T, *PREPARED)
    said = record(tmp_path, T, *PREPARED, COMMIT_PREPARED)
    assert recordings.stored(tmp_path / "0000000002.parquet") == encoded(T, COMMIT_PREPARED)
    assert rows(tmp_path) == [(9, ["prepared"])]
    is_sound(tmp_path, said)


@pytest.mark.parametrize(("end", "stored"), [(STREAMED[-1], []), (STREAM_PREPARED[-1], ["s"])])
def test_a_resent_streamed_transaction_ends_with_an_abort(
    tmp_path: Path, end: Message, stored: list[str]
) -> None:
    """For the repeated commit of resent stream blocks, an abort is stored, which voids the blocks."""
    record(tmp_path, T, *BLOCKS, end)
    said = record(tmp_path, T, *BLOCKS, end)
    abort = m.StreamAbort(xid=7, subxid=7, abort_lsn=200, abort_time=2)
    assert recordings.stored(tmp_path / "0000000002.parquet") == encoded(T, *BLOCKS, abort)
    assert [(one.type, one.begin) for one in said[1].ends] == [("StreamAbort", 11)]
    assert [one.gid for one in said[1].prepared] == stored
    assert said[1].transactions == 0
    assert len(rows(tmp_path)) == 1 - len(stored)
    is_sound(tmp_path, said)


def test_an_abort_stored_for_a_commit_follows_the_streaming_option(tmp_path: Path) -> None:
    """The stored Stream Abort has an LSN and a time only with streaming = parallel."""
    source = msgspec.structs.replace(PARALLEL, options={"streaming": "on"})
    blocks = [one for one in STREAMED if not isinstance(one, m.StreamAbort)]
    for start in (recordings.FIRST, SessionStart(session=2, number=2, position=9, lsn=210)):
        recordings.write(tmp_path, source, recordings.wrapped(T, *blocks), None, start)
    assert recordings.stored(tmp_path)[-1] == encode_for(m.StreamAbort(xid=7, subxid=7), 4)
    assert rows(tmp_path) == [(7, ["kept", "rolled back", "late"])]


@pytest.mark.parametrize("end", [COMMIT_PREPARED, ROLLBACK_PREPARED])
def test_a_transaction_prepared_before_two_phase_is_stored_with_its_commit(
    tmp_path: Path, end: Message
) -> None:
    """The Prepare's LSN is before the recording's start, but its changes first arrive with the commit."""
    late = (T, *PREPARED, COMMIT_PREPARED)
    said = record(tmp_path, *late, lsn=350)
    assert recordings.stored(tmp_path) == encoded(*late)
    assert rows(tmp_path) == [(9, ["prepared"])]
    assert (said[0].start_lsn, said[0].end_lsn) == (350, 410)
    # If all of that is sent again, it is voided.
    said = record(tmp_path, T, *PREPARED, end)
    assert rows(tmp_path) == [(9, ["prepared"])]
    assert recordings.stored(tmp_path)[-1] == encode_for(ROLLBACK_PREPARED, 4)
    assert said[1].prepared == ()
    is_sound(tmp_path, said)


def test_a_keyframe_has_only_relations_of_its_session(tmp_path: Path) -> None:
    """A keyframe does not contain Relation messages of the preceding session."""
    record(tmp_path, T, *WHOLE)
    record(tmp_path, *transaction_of(120, 6), T, m.Begin(final_lsn=140, commit_time=1, xid=7), cut=3)
    assert recordings.decoded(tmp_path / "0000000002.parquet")[0] == m.Begin(
        final_lsn=120, commit_time=1, xid=6
    )
    assert recordings.decoded(tmp_path / "0000000003.parquet") == [
        T,
        m.Begin(final_lsn=140, commit_time=1, xid=7),
    ]


def test_a_keyframe_has_all_open_state_in_order(tmp_path: Path) -> None:
    """The order is types, relations, prepared transactions, streamed transactions, current transaction."""
    mood, origin = (
        m.Type(oid=20_000, namespace="public", name="mood"),
        m.Origin(origin_lsn=3, name="elsewhere"),
    )
    before = (
        *(mood, T, *PREPARED, start_block(7), m.Origin(origin_lsn=0, name="far"), STOP),
        *(start_block(8), STOP),
    )
    streams = before[5:]
    cases: dict[tuple[Message, ...], tuple[tuple[Message, ...], Message]] = {
        (): ((), MESSAGE),
        (BEGIN, origin, m.Insert(relation_oid=1, new=("a",))): ((BEGIN, origin), COMMIT),
        (m.BeginPrepare(prepare_lsn=600, end_lsn=610, prepare_time=1, xid=11, gid="h"),): (
            (m.BeginPrepare(prepare_lsn=600, end_lsn=610, prepare_time=1, xid=11, gid="h"),),
            m.Prepare(prepare_lsn=600, end_lsn=610, prepare_time=1, xid=11, gid="h"),
        ),
        (start_block(9), m.Insert(relation_oid=1, new=("a",), xid=9)): ((start_block(9),), STOP),
    }
    for number, (opened, (again, after)) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        said = record(folder, *before, *opened, after, cut=len(before + opened))
        assert said[1].keyframe == len(streams + again) + 4
        keyframe = [mood, T, PREPARED[0], PREPARED[2], *streams, *again]
        assert recordings.decoded(folder / "0000000002.parquet") == [*keyframe, after]
        is_sound(folder, said)


def test_an_abort_of_an_unknown_transaction_is_not_stored(tmp_path: Path) -> None:
    """PostgreSQL 18.0 to 18.4 sends such an abort, which readers of the recording would refuse."""
    stray = m.StreamAbort(xid=5, subxid=6, abort_lsn=90, abort_time=1)
    record(tmp_path, stray, T, *WHOLE, *BLOCKS, stray, STREAMED[-1])
    assert recordings.stored(tmp_path) == encoded(T, *WHOLE, *STREAMED)
    assert rows(tmp_path) == [(5, ["whole"]), (7, ["kept", "late"])]


def test_segments_can_begin_inside_a_resent_transaction(tmp_path: Path) -> None:
    """Only the Relation messages of a resent transaction are stored again."""
    record(tmp_path, T, *WHOLE)
    wider = msgspec.structs.replace(T, columns=T.columns * 2)
    after = transaction_of(110, 6, time=2)
    said = record(tmp_path, BEGIN, T, m.Insert(relation_oid=1, new=("whole",)), wider, COMMIT, *after, cut=1)
    assert [recordings.decoded(path) for path in sorted(tmp_path.iterdir())[1:]] == [
        [T],
        [T, wider],
        [wider, after[0]],
        [wider, *after],
    ]
    is_sound(tmp_path, said)
