"""SegmentWriter writes the same segments from Arrow batches as from one message at a time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logicalrep import messages as m
from logicalrep.errors import DecodeError
from logicalrep.recording import (
    SEGMENT_BYTES,
    Job,
    RecordingReader,
    SegmentReader,
    SegmentWriter,
    SessionStart,
    list_segments,
    read_metadata,
    writer,
)
from logicalrep.stream import encode_for
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.messages import make_column, make_relation, start_block, transaction_of
from tests.recording import recordings

TIME = pa.timestamp("us", "UTC")


def write(
    folder: Path, name: str, start: SessionStart, size: int, cut: int, segment_bytes: int = SEGMENT_BYTES
) -> list[Path]:
    """Record a capture in batches of `size` messages, with a new segment after each `cut` messages."""
    folder.mkdir()
    writer = SegmentWriter(folder, recordings.source(name), start, segment_bytes=segment_bytes)
    sent = recordings.sent(name)
    for first in range(0, len(sent), cut):
        rows = range(first, min(first + cut, len(sent)))
        for few in (rows[i : i + size] for i in range(0, len(rows), size)):
            lsns = pa.array([sent[row].wal_start for row in few], pa.int64())
            times = pa.array([1_000_000 + row for row in few], pa.int64()).cast(TIME)
            writer.write_batch(lsns, times, pa.array([sent[row].data for row in few], pa.binary()))
        writer.rotate()
    return list_segments(folder)


def same(paths: list[Path], other_paths: list[Path]) -> None:
    assert [read_metadata(path) for path in paths] == [read_metadata(path) for path in other_paths]
    for path, other_path in zip(paths, other_paths, strict=True):
        assert row_groups(path) == row_groups(other_path)
        with SegmentReader(path) as segment, SegmentReader(other_path) as other_segment:
            tables = [pa.Table.from_batches(opened.batches()) for opened in (segment, other_segment)]
            assert tables[0].equals(tables[1])


def row_groups(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


NAMES = [name for name in corpus.CAPTURES if name.startswith(("pg18", "pg11"))]
KEPT = "pg11_ws_p1", "pg18_p2_stream_bin", "pg18_p3_2pc_stream_msg"
"""Captures with whole and with streamed and prepared transactions, in text and in binary format."""


@pytest.mark.parametrize(("cut", "size"), [(1_000_000, 1_000_000), (1_000_000, 7), (40, 1_000), (40, 7)])
@pytest.mark.parametrize("name", mostly_nightly(NAMES, KEPT))
def test_write_batch_makes_the_same_segments_as_write(
    name: str, cut: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_BATCH_ROWS", 30)
    one_by_one = write(tmp_path / "wanted", name, recordings.FIRST, 1, cut)
    same(one_by_one, write(tmp_path / "batches", name, recordings.FIRST, size, cut))


@pytest.mark.parametrize("segment_bytes", [500, 5_000, 1 << 20])
@pytest.mark.parametrize("name", mostly_nightly(NAMES, KEPT))
def test_resent_batches_make_the_same_segments_as_resent_messages(
    name: str, segment_bytes: int, tmp_path: Path
) -> None:
    """After a reconnect, the server sends all transactions again that were not acknowledged."""
    (whole,) = write(tmp_path / "whole", name, recordings.FIRST, 1_000_000, 1_000_000)
    ends = sorted({one.end_lsn for one in recordings.committed(whole)})
    start = msgspec.structs.replace(recordings.FIRST, lsn=ends[len(ends) // 2])
    one_by_one = write(tmp_path / "wanted", name, start, 1, 1_000_000, segment_bytes)
    stored = sum(read_metadata(path).messages for path in one_by_one)
    assert 0 < stored < read_metadata(whole).messages or "p4_par" in name  # streamed ones are voided
    same(one_by_one, write(tmp_path / "batches", name, start, 1_000_000, 1_000_000, segment_bytes))


def columns(*messages: m.Message, lsn: int = 100) -> tuple[pa.Array, pa.Array, pa.Array]:
    data = [encode_for(one, 4) for one in messages]
    times = pa.array([EPOCH_UNIX_MICROSECONDS] * len(data)).cast(TIME)
    return pa.array([lsn] * len(data), pa.int64()), times, pa.array(data, pa.binary())


RELATION = make_relation(make_column("a", key=True), namespace="s")
WHOLE = transaction_of(90, 7, m.Insert(relation_oid=1, new=("x",)), time=5)


def test_described_relations_are_in_the_keyframe(tmp_path: Path) -> None:
    start = msgspec.structs.replace(recordings.FIRST, described=(encode_for(RELATION, 4),))
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, start)
    writer.write_batch(*columns(*WHOLE))
    writer.rotate()
    (metadata,) = map(read_metadata, list_segments(tmp_path))
    assert (metadata.keyframe, metadata.messages, metadata.relations) == (1, 3, ())
    assert (metadata.transactions, metadata.last_commit_time, metadata.end_lsn) == (1, 5, 100)
    with RecordingReader(tmp_path) as segments:
        (transaction,) = segments.transactions()
        assert transaction.changes[0].relations == (RELATION,)


def test_a_segment_ends_after_the_message_that_fills_it(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, recordings.FIRST, segment_bytes=150)
    writer.write_batch(*columns(*WHOLE * 4))  # 21 + 16 + 26 bytes each
    writer.rotate()
    assert [read_metadata(path).messages for path in list_segments(tmp_path)] == [8, 4]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ((m.Begin(final_lsn=90, commit_time=5, xid=7), *WHOLE), "transaction 7 is still open"),
        ((start_block(8), *WHOLE), "transaction 8 is still open"),
        ((*WHOLE, m.Commit(commit_lsn=90, end_lsn=100, commit_time=5)), "no transaction is open"),
        ((start_block(8, first=False),), "has not had its first block"),
    ],
)
def test_out_of_place_messages_are_refused(
    messages: tuple[m.Message, ...], text: str, tmp_path: Path
) -> None:
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, recordings.FIRST)
    with pytest.raises(DecodeError, match=text):
        writer.write_batch(*columns(*messages))


@pytest.mark.parametrize("damaged", [b"", b"?", encode_for(WHOLE[0], 4)[:-1], b"C\1" + bytes(24)])
def test_invalid_messages_are_refused(damaged: bytes, tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, recordings.FIRST)
    lsns, times, data = columns(*WHOLE)
    data = pa.concat_arrays([data[:2], pa.array([damaged], pa.binary())])
    with pytest.raises(DecodeError):
        writer.write_batch(lsns, times, data)


def test_a_batch_is_freed_if_little_of_it_is_stored(tmp_path: Path) -> None:
    """If a large transaction is sent again, only its Relation messages are stored and kept in memory."""
    jobs: list[Job] = []
    start = msgspec.structs.replace(recordings.FIRST, lsn=100)
    writer = SegmentWriter(tmp_path, recordings.PARALLEL, start, run=jobs.append)
    pool = pa.default_memory_pool()
    writer.write_batch(*columns(m.Begin(final_lsn=90, commit_time=5, xid=7)))
    before = pool.bytes_allocated()
    for _ in range(50):
        writer.write_batch(*columns(RELATION, *[m.Insert(relation_oid=1, new=("x" * 10_000,))] * 10))
    assert not jobs
    assert pool.bytes_allocated() - before < 1 << 20
