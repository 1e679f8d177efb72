"""What is written in Arrow batches is what is written message by message."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from pgoutput import messages as m
from pgoutput.errors import DecodeError, StreamError
from pgoutput.messages import XLogData
from pgoutput.segments import Segment, Segments, SegmentWriter, Source, list_segments, read_metadata
from pgoutput.stream import encode_for
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS
from tests.codec import corpus
from tests.segments import recordings
from tests.segments.conftest import Recorded


def batches(rows: pa.Table, size: int) -> Iterable[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        yield rows.slice(start, size).combine_chunks().to_batches()[0]


def stored_rows(folder: Path) -> pa.Table:
    """The rows of a recording without keyframes."""
    tables = []
    for path in list_segments(folder):
        with Segment(path) as segment:
            tables.append(pa.Table.from_batches(segment.batches()).slice(segment.metadata.keyframe))
    return pa.concat_tables(tables)


def write_in_batches(folder: Path, source: Source, rows: pa.Table, cut: int, size: int) -> None:
    folder.mkdir()
    writer = SegmentWriter(folder, source, recordings.FIRST)
    for start in range(0, len(rows), cut):
        for batch in batches(rows.slice(start, cut), size):
            writer.write_batch(batch["lsn"], batch["received_at"], batch["data"])
        writer.rotate()


def same(one: Path, other: Path) -> None:
    paths = list_segments(one), list_segments(other)
    assert [read_metadata(path) for path in paths[0]] == [read_metadata(path) for path in paths[1]]
    for path, other_path in zip(*paths, strict=True):
        with Segment(path) as segment, Segment(other_path) as other_segment:
            tables = [pa.Table.from_batches(opened.batches()) for opened in (segment, other_segment)]
            assert tables[0].equals(tables[1])


@pytest.mark.parametrize(("cut", "size"), [(1_000_000, 1_000_000), (1_000_000, 7), (40, 1_000), (40, 7)])
@pytest.mark.parametrize("name", [name for name in corpus.CAPTURES if name.startswith(("pg18", "pg11"))])
def test_batches_make_the_same_segments(
    name: str, cut: int, size: int, recorded: Recorded, tmp_path: Path
) -> None:
    folder = recorded(name, 1_000_000)
    rows = stored_rows(folder)
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    writer = SegmentWriter(wanted, recordings.source(name), recordings.FIRST)
    messages = [XLogData(row["lsn"], row["lsn"], 0, row["data"]) for row in rows.to_pylist()]
    times = rows["received_at"].cast(pa.int64()).to_pylist()
    for start in range(0, len(messages), cut):
        for message, time in list(zip(messages, times, strict=True))[start : start + cut]:
            writer.write([message], time)
        writer.rotate()
    write_in_batches(tmp_path / "batches", recordings.source(name), rows, cut, size)
    same(wanted, tmp_path / "batches")


def columns(*messages: m.Message, lsn: int = 100) -> tuple[pa.Array, pa.Array, pa.Array]:
    data = [encode_for(one, 4) for one in messages]
    times = pa.array([EPOCH_UNIX_MICROSECONDS] * len(data)).cast(pa.timestamp("us", "UTC"))
    return pa.array([lsn] * len(data), pa.int64()), times, pa.array(data, pa.binary())


RELATION = m.Relation(1, "s", "t", m.ReplicaIdentity.DEFAULT, (m.RelationColumn(1, "a", 25, -1),))
WHOLE = (m.Begin(90, 5, 7), m.Insert(1, ("x",)), m.Commit(90, 100, 5))


def test_what_others_described_stands_in_the_keyframe(tmp_path: Path) -> None:
    start = msgspec.structs.replace(recordings.FIRST, described=(encode_for(RELATION, 4),))
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, start)
    writer.write_batch(*columns(*WHOLE))
    writer.rotate()
    (metadata,) = map(read_metadata, list_segments(tmp_path))
    assert (metadata.keyframe, metadata.messages, metadata.relations) == (1, 3, ())
    assert (metadata.transactions, metadata.last_commit_time, metadata.end_lsn) == (1, 5, 100)
    with Segments(tmp_path) as segments:
        (transaction,) = segments.transactions()
        assert transaction.changes[0].relations == (RELATION,)


def test_a_segment_ends_behind_a_batch_that_fills_it(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, recordings.FIRST, segment_bytes=150)
    for _ in range(4):
        writer.write_batch(*columns(*WHOLE))  # 63 bytes
    writer.rotate()
    assert [read_metadata(path).messages for path in list_segments(tmp_path)] == [9, 3]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ((m.Begin(90, 5, 7), *WHOLE), "transaction 7 is still open"),
        ((m.StreamStart(8, True), *WHOLE), "transaction 8 is still open"),
        ((*WHOLE, m.Commit(90, 100, 5)), "no transaction is open"),
        ((m.StreamStart(8, False),), "has not had its first block"),
    ],
)
def test_what_no_server_sends_is_refused(messages: tuple[m.Message, ...], text: str, tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, recordings.FIRST)
    with pytest.raises(DecodeError, match=text):
        writer.write_batch(*columns(*messages))


@pytest.mark.parametrize("damaged", [b"", b"?", encode_for(WHOLE[0], 4)[:-1], b"C\1" + bytes(24)])
def test_what_is_no_message_is_refused(damaged: bytes, tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, recordings.FIRST)
    lsns, times, data = columns(*WHOLE)
    data = pa.concat_arrays([data[:2], pa.array([damaged], pa.binary())])
    with pytest.raises(DecodeError):
        writer.write_batch(lsns, times, data)


def test_what_was_stored_before_is_refused(tmp_path: Path) -> None:
    start = msgspec.structs.replace(recordings.FIRST, lsn=100)
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, start)
    with pytest.raises(StreamError, match="position 0: what was stored before is sent again"):
        writer.write_batch(*columns(*WHOLE))
