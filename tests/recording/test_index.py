"""The metadata of the segment in which a transaction ends names all segments with its changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from logicalrep import messages as m
from logicalrep.recording import Metadata, RecordingReader, list_segments, read_metadata
from logicalrep.recording.segment_format import TransactionEnd
from logicalrep.stream import Change, Transaction, Transactions
from tests.messages import STOP, start_block
from tests.recording import recordings
from tests.recording.conftest import Recorded
from tests.recording.recordings import Row

COMMITS = ("Commit", "StreamCommit", "CommitPrepared")
CUTS = [
    ("pg18_ws_p4_par_2pc_msg", 5),
    ("pg15_p1_on_2pc_slot", 5),
    ("pg14_ws_p2_stream_msg", 7),
    ("pg11_p1", 7),
    *(
        pytest.param(name, cut, marks=pytest.mark.nightly)
        for name, cut in (
            ("pg18_p4_par_2pc", 2),
            ("pg16_p4_par_msg", 5),
            ("pg15_p3_2pc_stream_msg", 7),
            ("pg18_p4_par_2pc_immediate", 151),
        )
    ),
]


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_transactions_are_rebuilt_from_the_segments_in_their_metadata(
    recorded: Recorded, tmp_path: Path, name: str, cut: int
) -> None:
    paths = list_segments(recorded(name, cut))
    said = {one.number: one for one in map(read_metadata, paths)}
    committed = by_position(recorded(name, cut))
    ends = [end for one in said.values() for end in one.ends if end.type in COMMITS]
    assert {end.position for end in ends} <= committed.keys()
    assert any(len(end.segments) > 1 for end in ends)
    # Each segment is copied to a folder of its own, so no other can be read.
    alone = {number: tmp_path / f"{number}.parquet" for number in said}
    for path, copy in zip(paths, alone.values(), strict=True):
        copy.symlink_to(path)
    rows = {number: list(recordings.rows(path)) for number, path in alone.items()}
    for end in ends:
        transaction = committed.pop(end.position)
        assert rebuilt(rows, end) == transaction.changes
        assert (end.xid, end.lsn, end.gid) == (transaction.xid, transaction.commit_lsn, transaction.gid)
    # All other transactions are wholly in one segment.
    for number, path in alone.items():
        first, end_position = said[number].first_position, said[number].next_position
        ended = {end.position for end in said[number].ends}
        inside = [one for position, one in by_position(path).items() if position not in ended]
        here = [committed.pop(position) for position in [*committed] if first <= position < end_position]
        assert inside == here
        assert len(here) + sum(end.type in COMMITS for end in said[number].ends) == said[number].transactions
    assert not committed


def by_position(path: Path) -> dict[int, Transaction]:
    """Return the committed transactions by the position of the commit message."""
    found = {}
    with RecordingReader(path) as segments:
        transactions = Transactions(segments.decoder)
        for one in segments.messages():
            assert one.message is not None
            transaction = transactions.feed(one.message)
            if transaction is not None:
                assert one.record.number is not None
                found[one.record.number] = recordings.bare(transaction)
    return found


def rebuilt(rows: dict[int, list[Row]], end: TransactionEnd) -> list[Change]:
    """Return a transaction's changes from the segments that its `TransactionEnd` names."""
    assert end.begin is not None
    assert list(end.segments) == sorted(set(end.segments))
    return [
        row.change
        for number in end.segments
        for row in rows[number]
        if end.begin <= row.position < end.position and row.xid == end.xid
        if getattr(row.change.message, "xid", None) not in end.rolled_back
        or isinstance(row.change.message, m.LogicalMessage)
    ]


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_parts_count_the_changes_of_each_transaction(recorded: Recorded, name: str, cut: int) -> None:
    paths = list_segments(recorded(name, cut))
    said = list(map(read_metadata, paths))
    begins = begin_of_each(recorded(name, cut))
    listed: dict[int, set[int]] = {}
    for path, one in zip(paths, said, strict=True):
        counts: dict[int, int] = {}
        for row in recordings.rows(path):
            if not isinstance(row.change.message, m.LogicalMessage):
                counts[begins[row.position]] = counts.get(begins[row.position], 0) + 1
        parts = {part.begin: part for part in one.parts}
        assert len(parts) == len(one.parts)
        assert {begin: part.changes for begin, part in parts.items()} == {
            begin: counts.get(begin, 0) for begin in parts
        }
        assert {part.xid for part in one.parts} >= {end.xid for end in one.ends if end.begin in parts}
        # A transaction that is not listed is ordinary and wholly in this segment.
        for begin in counts.keys() - parts.keys():
            assert one.first_position <= begin < one.next_position
        for begin in parts:
            listed.setdefault(begin, set()).add(one.number)
    for end in (end for one in said for end in one.ends):
        if end.begin is not None:
            assert set(end.segments) == listed[end.begin]


def begin_of_each(path: Path) -> dict[int, int]:
    """Return the position at which a change's transaction begins, by position of the change."""
    first_blocks: dict[int, int] = {}
    current, found = None, {}
    with RecordingReader(path) as segments:
        for one in segments.messages():
            position = one.record.number
            assert position is not None
            match one.message:
                case m.Begin() | m.BeginPrepare():
                    current = position
                case m.StreamStart(xid=xid, first_stream_segment=first):
                    current = first_blocks[xid] = position if first else first_blocks[xid]
            if current is not None:
                found[position] = current
            if isinstance(one.message, m.Commit | m.Prepare | m.StreamStop):
                current = None
    return found


def test_ends_have_type_lsn_and_segments(tmp_path: Path) -> None:
    """A streamed transaction commits after a savepoint's rollback, another aborts, others are prepared."""
    said = recordings.record(
        tmp_path,
        *(
            start_block(7),
            m.Insert(relation_oid=1, new=("a",), xid=7),
            m.Insert(relation_oid=1, new=("b",), xid=8),
            STOP,
        ),
        *(start_block(9), m.Insert(relation_oid=1, new=("c",), xid=9), STOP),
        *(
            m.StreamAbort(xid=7, subxid=8, abort_lsn=50, abort_time=5),
            start_block(7, first=False),
            m.Insert(relation_oid=1, new=("d",), xid=7),
            STOP,
        ),
        *(
            m.StreamAbort(xid=9, subxid=9, abort_lsn=60, abort_time=6),
            m.StreamCommit(xid=7, commit_lsn=70, end_lsn=80, commit_time=8),
        ),
        *(
            m.BeginPrepare(prepare_lsn=90, end_lsn=95, prepare_time=9, xid=10, gid="g"),
            m.Insert(relation_oid=1, new=("e",)),
            m.Prepare(prepare_lsn=90, end_lsn=95, prepare_time=9, xid=10, gid="g"),
        ),
        *(
            m.CommitPrepared(commit_lsn=100, end_lsn=105, commit_time=10, xid=10, gid="g"),
            m.RollbackPrepared(
                prepare_end_lsn=10,
                rollback_end_lsn=110,
                prepare_time=1,
                rollback_time=11,
                xid=6,
                gid="before",
            ),
        ),
        cut=4,
    )
    assert [[(part.begin, part.xid, part.changes) for part in one.parts] for one in said] == [
        [(0, 7, 2)],
        [(4, 9, 1), (0, 7, 0)],
        [(0, 7, 1)],
        [(13, 10, 1)],
        [],
    ]
    assert [end for one in said for end in one.ends] == [
        TransactionEnd(11, "StreamAbort", 9, 4, 60, 6, (2,)),
        TransactionEnd(12, "StreamCommit", 7, 0, 70, 8, (1, 2, 3), (8,)),
        TransactionEnd(15, "Prepare", 10, 13, 90, 9, (4,), (), "g"),
        TransactionEnd(16, "CommitPrepared", 10, 13, 100, 10, (4,), (), "g"),
        TransactionEnd(17, "RollbackPrepared", 6, None, 110, 11, (), (), "before"),
    ]
    assert prepared(said) == [[], [], [], ["g"], []]
    assert [one.transactions for one in said] == [0, 0, 0, 1, 1]
    assert [one.last_commit_time for one in said] == [None, None, None, 8, 10]
    assert [(one.start_lsn, one.end_lsn) for one in said] == [
        *[(0, 0)] * 3,
        (0, 95),
        (95, 110),
    ]


def prepared(said: list[Metadata]) -> list[list[str]]:
    return [[one.gid for one in metadata.prepared] for metadata in said]


def test_a_reused_xid_is_another_transaction(tmp_path: Path) -> None:
    block = (start_block(7), m.Insert(relation_oid=1, new=("a",), xid=7), STOP)
    said = recordings.record(
        tmp_path,
        *block,
        m.StreamCommit(xid=7, commit_lsn=10, end_lsn=20, commit_time=1),
        *block,
        m.StreamCommit(xid=7, commit_lsn=30, end_lsn=40, commit_time=2),
        cut=2,
    )
    assert [(end.begin, end.segments) for one in said for end in one.ends] == [(0, (1, 2)), (4, (3, 4))]
