"""A new session voids open transactions, keeps prepared transactions, and stores no transaction twice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pgoutput import messages as m
from pgoutput.messages import Message, ReplicaIdentity
from pgoutput.recording import Metadata, SegmentWriter, SessionStart, find_inconsistencies
from pgoutput.stream import Transaction, encode_for
from tests.recording import recordings
from tests.recording.recordings import PARALLEL, record

T = m.Relation(1, "public", "t", ReplicaIdentity("d"), (m.RelationColumn(1, "id", 25, -1),))
BEGIN, COMMIT = m.Begin(100, 1, 5), m.Commit(100, 110, 1)
WHOLE = (BEGIN, m.Insert(1, ("whole",)), COMMIT)
BLOCKS = (
    *(m.StreamStart(7, True), m.Insert(1, ("kept",), 7), m.Insert(1, ("rolled back",), 8), m.StreamStop()),
    *(m.StreamAbort(7, 8, 180, 2), m.StreamStart(7, False), m.Insert(1, ("late",), 7), m.StreamStop()),
)
STREAMED = (*BLOCKS, m.StreamCommit(7, 200, 210, 2))
STREAM_PREPARED = (*BLOCKS, m.StreamPrepare(200, 210, 2, 7, "s"))
PREPARED = (m.BeginPrepare(300, 310, 3, 9, "g"), m.Insert(1, ("prepared",)), m.Prepare(300, 310, 3, 9, "g"))
COMMIT_PREPARED = m.CommitPrepared(400, 410, 4, 9, "g")
ROLLBACK_PREPARED = m.RollbackPrepared(310, 410, 3, 4, 9, "g")
MESSAGE = m.LogicalMessage(0, 500, "prefix", b"content")


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
        ((*STREAM_PREPARED, m.CommitPrepared(400, 410, 4, 7, "s")), (7, ["kept", "late"])),
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
    first = record(tmp_path, T, BEGIN, m.Insert(1, ("void",)))
    assert [(one.transactions, one.ends, one.end_lsn) for one in first] == [(0, (), 0)]
    assert [(part.begin, part.xid, part.changes) for part in first[0].parts] == [(1, 5, 1)]
    second = record(tmp_path, T, *WHOLE)[1:]
    assert [(one.transactions, one.parts, one.ends) for one in second] == [(1, (), ())]
    assert [(one.first_position, one.keyframe) for one in second] == [(3, 0)]
    assert recordings.stored(tmp_path) == encoded(T, BEGIN, m.Insert(1, ("void",)), T, *WHOLE)


def test_later_sessions_can_end_prepared_transactions(tmp_path: Path) -> None:
    record(tmp_path, T, *STREAM_PREPARED, *PREPARED, cut=4)
    record(tmp_path, T, m.Begin(320, 1, 6), m.Commit(320, 330, 1))
    said = record(tmp_path, COMMIT_PREPARED, m.RollbackPrepared(210, 430, 2, 4, 7, "s"))
    assert rows(tmp_path) == [(6, []), (9, ["prepared"])]
    is_sound(tmp_path, said)
    last = said[-1]
    assert (last.session, last.prepared) == (3, ())
    assert [(end.type, end.gid, end.begin, end.segments, end.rolled_back) for end in last.ends] == [
        ("CommitPrepared", "g", 10, (3, 4), ()),
        ("RollbackPrepared", "s", 1, (1, 2, 3), (8,)),
    ]
    at = (300, 310, 3, 9, "g")
    prepared = [
        *(m.BeginPrepare(200, 210, 2, 7, "s"), m.Prepare(200, 210, 2, 7, "s")),
        *(m.BeginPrepare(*at), m.Prepare(*at)),
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
    message = m.LogicalMessage(0, COMMIT.commit_lsn, "prefix", b"content")
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
        (BEGIN, m.Origin(1, "o"), m.LogicalMessage(1, 99, "", b""), m.Truncate(0, (1,)), COMMIT),
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
    later = (T, m.Begin(500, 9, 11), m.Insert(1, ("new",)), m.Commit(500, 510, 9))
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
    abort = m.StreamAbort(7, 7, 200, 2)
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
    assert recordings.stored(tmp_path)[-1] == encode_for(m.StreamAbort(7, 7), 4)
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
    record(tmp_path, m.Begin(120, 1, 6), m.Commit(120, 130, 1), T, m.Begin(140, 1, 7), cut=3)
    assert recordings.decoded(tmp_path / "0000000002.parquet")[0] == m.Begin(120, 1, 6)
    assert recordings.decoded(tmp_path / "0000000003.parquet") == [T, m.Begin(140, 1, 7)]


def test_a_keyframe_has_all_open_state_in_order(tmp_path: Path) -> None:
    """The order is types, relations, prepared transactions, streamed transactions, current transaction."""
    mood, origin = m.Type(20_000, "public", "mood"), m.Origin(3, "elsewhere")
    before = (
        *(mood, T, *PREPARED, m.StreamStart(7, True), m.Origin(0, "far"), m.StreamStop()),
        *(m.StreamStart(8, True), m.StreamStop()),
    )
    streams = before[5:]
    cases: dict[tuple[Message, ...], tuple[tuple[Message, ...], Message]] = {
        (): ((), MESSAGE),
        (BEGIN, origin, m.Insert(1, ("a",))): ((BEGIN, origin), COMMIT),
        (m.BeginPrepare(600, 610, 1, 11, "h"),): (
            (m.BeginPrepare(600, 610, 1, 11, "h"),),
            m.Prepare(600, 610, 1, 11, "h"),
        ),
        (m.StreamStart(9, True), m.Insert(1, ("a",), 9)): ((m.StreamStart(9, True),), m.StreamStop()),
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
    stray = m.StreamAbort(5, 6, 90, 1)
    record(tmp_path, stray, T, *WHOLE, *BLOCKS, stray, STREAMED[-1])
    assert recordings.stored(tmp_path) == encoded(T, *WHOLE, *STREAMED)
    assert rows(tmp_path) == [(5, ["whole"]), (7, ["kept", "late"])]


def test_segments_can_begin_inside_a_resent_transaction(tmp_path: Path) -> None:
    """Only the Relation messages of a resent transaction are stored again."""
    record(tmp_path, T, *WHOLE)
    wider = msgspec.structs.replace(T, columns=T.columns * 2)
    after = (m.Begin(110, 2, 6), m.Commit(110, 120, 2))
    said = record(tmp_path, BEGIN, T, m.Insert(1, ("whole",)), wider, COMMIT, *after, cut=1)
    assert [recordings.decoded(path) for path in sorted(tmp_path.iterdir())[1:]] == [
        [T],
        [T, wider],
        [wider, after[0]],
        [wider, *after],
    ]
    is_sound(tmp_path, said)
