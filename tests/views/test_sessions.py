"""Transactions that span stream blocks, segments, sessions or micro-batches are read completely and once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from logicalrep import messages as m
from logicalrep.jsonlines import to_json
from logicalrep.messages import Message
from logicalrep.recording import (
    SNAPSHOT,
    Metadata,
    Recording,
    SchemaVersion,
    SegmentFile,
    SessionStart,
    segment_name,
)
from logicalrep.recording.segment_file import message_batch
from logicalrep.stream import encode_for
from logicalrep.views import LsnRange, plan_changes
from logicalrep.wire import to_datetime
from tests.messages import STOP, make_relation, start_block, transaction_of
from tests.recording import recordings
from tests.recording.recordings import PARALLEL, record
from tests.recording.test_sessions import (
    BLOCKS,
    COMMIT_PREPARED,
    PREPARED,
    ROLLBACK_PREPARED,
    STREAM_PREPARED,
    STREAMED,
    WHOLE,
    T,
)
from tests.views.rows import Row, changes, expected_changes, in_order, messages, schema_rows, table, without


def texts(rows: list[Row]) -> list[str]:
    return [str(dict(row["after"])["id"]) for row in rows]


def as_expected(folder: Path) -> list[Row]:
    """Return all rows of `changes`, checked against the expected rows and against single-segment reads."""
    found = in_order(changes(folder))
    assert [without(row, "position", "sequence") for row in found] == [
        one.row for one in expected_changes(folder)
    ]
    torn = [row for number in Recording(folder).numbers for row in changes(folder, [number])]
    assert in_order(torn) == found
    return found


@pytest.mark.parametrize("cut", [2, 100])
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
        ((*BLOCKS, m.StreamAbort(xid=7, subxid=7, abort_lsn=200, abort_time=2)), (7, [])),
        ((*PREPARED, ROLLBACK_PREPARED), (9, [])),
    ],
    ids=["whole", "streamed", "prepared", "streamed and prepared", "aborted", "rolled back"],
)
def test_changes_are_complete_wherever_the_connection_breaks(
    tmp_path: Path, cut: int, transaction: tuple[Message, ...], committed: tuple[int, list[str]]
) -> None:
    for broke in range(len(transaction) + 1):
        folder = tmp_path / str(broke)
        folder.mkdir()
        if broke:
            record(folder, T, *transaction[:broke], cut=cut)
        record(folder, T, *transaction, cut=cut)
        rows = as_expected(folder)
        assert texts(rows) == committed[1]
        assert {row["xid"] for row in rows} <= {committed[0]}


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_prepared_transactions_are_read_with_their_commit(tmp_path: Path, cut: int) -> None:
    """The commit can come several sessions later; the changes have the LSN and time of the commit."""
    before = record(tmp_path, T, *STREAM_PREPARED, *PREPARED, cut=cut)[-1].number
    record(tmp_path, T, *transaction_of(320, 6, m.Insert(relation_oid=1, new=("between",))))
    record(
        tmp_path,
        COMMIT_PREPARED,
        m.CommitPrepared(commit_lsn=500, end_lsn=510, commit_time=4, xid=7, gid="s"),
        cut=1,
    )
    rows = as_expected(tmp_path)
    assert [(row["xid"], row["commit_lsn"], *texts([row])) for row in rows] == [
        (6, 320, "between"),
        (9, 400, "prepared"),
        (7, 500, "kept"),
        (7, 500, "late"),
    ]
    assert changes(tmp_path, range(1, before + 1)) == []
    assert texts(changes(tmp_path, [before + 2])) == ["prepared"]
    assert texts(changes(tmp_path, [before + 3])) == ["kept", "late"]
    assert texts(changes(tmp_path, lsns=LsnRange(450))) == ["kept", "late"]


def test_interleaved_streamed_transactions_are_separated(tmp_path: Path) -> None:
    """Stream blocks of several transactions alternate, with an ordinary transaction between them."""

    def block(xid: int, text: str, subxid: int | None = None, first: bool = False) -> tuple[Message, ...]:
        return (start_block(xid, first=first), m.Insert(relation_oid=1, new=(text,), xid=subxid or xid), STOP)

    stream = (
        *(T, *block(7, "a1", first=True), *block(8, "b1", first=True), *block(7, "a2", 71), *WHOLE),
        *block(8, "b2", 81),
        *(
            m.StreamAbort(xid=7, subxid=71, abort_lsn=110, abort_time=1),
            *block(7, "a3", 72),
            *block(9, "c1", first=True),
        ),
        *(
            m.StreamCommit(xid=8, commit_lsn=200, end_lsn=210, commit_time=2),
            *block(7, "a4", 71),
            m.StreamAbort(xid=9, subxid=9, abort_lsn=220, abort_time=2),
        ),
        *(
            m.StreamAbort(xid=7, subxid=72, abort_lsn=230, abort_time=3),
            m.StreamCommit(xid=7, commit_lsn=300, end_lsn=310, commit_time=3),
        ),
    )
    for cut in (1, 2, 5, 100):
        folder = tmp_path / str(cut)
        folder.mkdir()
        record(folder, *stream, cut=cut)
        rows = in_order(changes(folder))
        # Xid 71 was rolled back and is not reused, so all its changes are gone.
        assert [(row["xid"], *texts([row])) for row in rows] == [
            (5, "whole"),
            (8, "b1"),
            (8, "b2"),
            (7, "a1"),
        ]
        assert {row["commit_lsn"] for row in rows} == {100, 200, 300}
        torn = [row for number in Recording(folder).numbers for row in changes(folder, [number])]
        assert in_order(torn) == rows


def test_a_reused_xid_is_another_transaction(tmp_path: Path) -> None:
    """Xids wrap around; a transaction is identified by the position where it begins."""
    again = (
        *(start_block(7), m.Insert(relation_oid=1, new=("again",), xid=8), STOP),
        m.StreamCommit(xid=7, commit_lsn=600, end_lsn=610, commit_time=2),
    )
    for cut in (1, 3, 100):
        folder = tmp_path / str(cut)
        folder.mkdir()
        record(folder, T, *STREAMED, *again, cut=cut)
        assert texts(as_expected(folder)) == ["kept", "late", "again"]


def test_a_truncate_has_a_row_for_each_relation_and_can_be_rolled_back(tmp_path: Path) -> None:
    u = make_relation(*T.columns, oid=2, name="u", identity=T.replica_identity)
    record(
        tmp_path,
        *(
            T,
            u,
            start_block(7),
            m.Truncate(options=m.TruncateOption(0), relation_oids=(2, 1), xid=7),
            m.Truncate(options=m.TruncateOption(0), relation_oids=(1,), xid=8),
            STOP,
        ),
        *(
            m.StreamAbort(xid=7, subxid=8, abort_lsn=180, abort_time=2),
            m.StreamCommit(xid=7, commit_lsn=200, end_lsn=210, commit_time=2),
        ),
        cut=2,
    )
    rows = as_expected(tmp_path)
    assert [(row["operation"], row["relation"]["name"]) for row in rows] == [
        ("Truncate", "u"),
        ("Truncate", "t"),
    ]
    assert {row["position"] for row in rows} == {3}
    assert [(row["before"], row["after"], row["unchanged"]) for row in rows] == [(None, None, [])] * 2


def test_logical_messages_give_no_rows_of_changes(tmp_path: Path) -> None:
    begin, insert, commit = WHOLE
    record(
        tmp_path,
        T,
        begin,
        m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=90, prefix="p", content=b"c"),
        insert,
        commit,
        m.LogicalMessage(flags=m.MessageFlag(0), lsn=500, prefix="", content=b""),
    )
    assert texts(as_expected(tmp_path)) == ["whole"]
    assert [row["prefix"] for row in messages(tmp_path) if row["type"] == "LogicalMessage"] == ["p", ""]


def test_times_out_of_sparks_range_are_null(tmp_path: Path) -> None:
    far = 2**62
    record(tmp_path, T, *transaction_of(100, 5, WHOLE[1], time=far))
    (row,) = changes(tmp_path)
    assert (row["commit_time"], row["commit_lsn"]) == (None, 100)


def snapshot(folder: Path, *texts: Sequence[str]) -> None:
    """Write a snapshot like the recorder: one transaction per segment, gaps in positions between segments."""
    (folder / SNAPSHOT).mkdir()
    for number, of_one in enumerate(texts, start=1):
        inserts = [m.Insert(relation_oid=1, new=(text,)) for text in of_one]
        messages = [
            m.Begin(final_lsn=90, commit_time=4, xid=0),
            T,
            *inserts,
            m.Commit(commit_lsn=90, end_lsn=90, commit_time=4),
        ]
        first = 1000 * number - 1000
        file = SegmentFile(folder / SNAPSHOT / segment_name(number))
        times = [0] * len(messages)
        file.add(first, [message_batch(times, times, [encode_for(one, 4) for one in messages])])
        file.finish(
            Metadata(
                kind="snapshot",
                number=number,
                session=0,
                source=PARALLEL,
                first_position=first,
                messages=len(messages),
                keyframe=0,
                start_lsn=90,
                end_lsn=90,
                transactions=1,
                relations=(SchemaVersion(first + 1, 90, to_json(T)),),
            )
        )


def test_rows_of_the_snapshot_have_their_own_operation(tmp_path: Path) -> None:
    snapshot(tmp_path, ["one", "two"], [], ["three"])
    start = SessionStart(session=1, number=4, position=3000, lsn=90)
    recordings.write(tmp_path, PARALLEL, recordings.wrapped(T, *WHOLE), 2, start)
    rows = as_expected(tmp_path)
    assert [(row["operation"], row["commit_lsn"], row["xid"], *texts([row])) for row in rows] == [
        ("Snapshot", 90, 0, "one"),
        ("Snapshot", 90, 0, "two"),
        ("Snapshot", 90, 0, "three"),
        ("Insert", 100, 5, "whole"),
    ]
    assert {row["commit_time"] for row in rows[:3]} == {to_datetime(4)}
    assert table(tmp_path, "t")["operation"].to_pylist() == ["Snapshot"] * 3 + ["Insert"]
    assert texts(changes(tmp_path, lsns=LsnRange(0, 90))) == ["one", "two", "three"]
    assert texts([row for row in changes(tmp_path, lsns=LsnRange(91)) if row["commit_lsn"] > 90]) == ["whole"]
    assert {row["position"] for row in messages(tmp_path)} >= {0, 1000, 2000, 3000}
    assert [(row["version"], row["position"]) for row in schema_rows(tmp_path)] == [(1, 1)]
    for number in (1, 3, 5):  # each can be read alone
        path = Path(str(Recording(tmp_path).path(number)))
        assert changes(path) == changes(tmp_path, [number])


def test_extend_finds_a_snapshot_that_was_published_by_a_rename(tmp_path: Path) -> None:
    """`logicalrep sync` waits with `extend` for the first segments of a recording."""
    made, folder = tmp_path / "made", tmp_path / "recording"
    for place in (made, folder):
        place.mkdir()
    recording = Recording(folder, may_be_empty=True)
    snapshot(made, ["one"], ["two"])
    (made / SNAPSHOT).rename(folder / SNAPSHOT)
    recording.extend(packs=False)
    assert recording.numbers == [1, 2]
    start = SessionStart(session=1, number=3, position=2000, lsn=90)
    recordings.write(folder, PARALLEL, recordings.wrapped(T, *WHOLE), start=start)
    recording.extend(packs=False)
    assert recording.numbers == [1, 2, 3]


def test_refresh_sees_new_segments_and_keeps_metadata(tmp_path: Path) -> None:
    """`Recording.refresh` lists new segments, and keeps the last known segment's metadata in memory."""
    with pytest.raises(Exception, match="no segments found"):
        Recording(tmp_path)
    recording = Recording(tmp_path, may_be_empty=True)
    assert (recording.numbers, plan_changes(recording, [])) == ([], [])
    record(tmp_path, T, *STREAMED[:5])
    recording.refresh()
    assert recording.numbers == [1]
    assert [task.commits for task in plan_changes(recording, [1])] == [{}]
    record(tmp_path, T, *STREAMED, cut=4)
    record(tmp_path, T, *PREPARED, COMMIT_PREPARED)
    recording.refresh()
    recording.check()
    everything = plan_changes(recording, recording.numbers)
    assert everything == plan_changes(Recording(tmp_path), range(1, 6))
    assert plan_changes(recording, [1]) == everything[:1]
