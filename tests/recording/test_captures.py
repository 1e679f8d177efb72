"""Messages of real servers are stored byte for byte, and each segment can be read alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from logicalrep import messages as m
from logicalrep.recording import (
    SegmentReader,
    SegmentWriter,
    find_inconsistencies,
    list_segments,
    read_metadata,
    writer,
)
from logicalrep.stream import StreamDecoder
from tests.codec import corpus
from tests.recording import recordings
from tests.recording.conftest import Recorded

SOME = "pg10_ws_p1", "pg14_ws_p2_stream_msg", "pg15_p3_2pc_stream_msg", "pg18_p2_stream_bin"
"""Captures of all protocol versions but the newest, which is cut into the smallest segments."""
CUTS = [
    ("pg18_ws_p4_par_2pc_msg", 5),
    ("pg15_p1_on_2pc_slot", 5),
    ("pg10_ws_p1", 10_000),
    *(pytest.param(name, 151, marks=() if name in SOME else pytest.mark.nightly) for name in corpus.CAPTURES),
    *(
        pytest.param(name, cut, marks=pytest.mark.nightly)
        for name, cut in (
            ("pg18_p4_par_2pc", 2),
            ("pg15_p3_2pc_stream_msg", 7),
            ("pg14_ws_p2_stream_msg", 7),
        )
    ),
]
each_cut = pytest.mark.parametrize(("name", "cut"), CUTS)


@each_cut
def test_reads_back_byte_for_byte_and_each_segment_alone(recorded: Recorded, name: str, cut: int) -> None:
    sent, folder = recordings.sent(name), recorded(name, cut)
    paths = list_segments(folder)
    said = [read_metadata(path) for path in paths]
    assert [one.number for one in said] == list(range(1, -(-len(sent) // cut) + 1))
    assert [path.name for path in paths] == [f"{one.number:010}.parquet" for one in said]
    assert not list(find_inconsistencies(said))
    assert recordings.stored(folder) == [message.data for message in sent]
    expected = recordings.captured(name)
    assert recordings.committed(folder) == expected
    assert sum(one.transactions for one in said) == len(expected)
    assert max((one.end_lsn for one in expected), default=0) <= said[-1].end_lsn
    for path, one in zip(paths, said, strict=True):
        alone = recordings.committed(path)  # raises no error: the segment is a valid stream
        assert len(alone) == one.transactions
        assert one.last_commit_time == (alone[-1].commit_time if alone else None)


@pytest.mark.parametrize("name", ["pg18_ws_p4_par_2pc_msg", "pg14_ws_p1_msg"])
def test_columns_have_positions_lsns_and_times(recorded: Recorded, name: str) -> None:
    sent = recordings.sent(name)
    for number, path in enumerate(list_segments(recorded(name, 151))):
        with SegmentReader(path) as segment:
            rows = [row for batch in segment.batches() for row in batch.to_pylist()]
            keyframe, messages = segment.metadata.keyframe, segment.metadata.messages
        nothing = {"position": None, "lsn": None, "received_at": None}
        assert all(row | nothing == row for row in rows[:keyframe])
        there = sent[151 * number : 151 * number + 151]
        assert len(there) == messages
        for position, (row, message) in enumerate(zip(rows[keyframe:], there, strict=True), 151 * number):
            microseconds = round(row["received_at"].timestamp() * 1_000_000)
            assert (row["position"], row["lsn"], row["data"], microseconds) == (
                position,
                message.wal_start,
                message.data,
                1_000_000 + 151 * number,
            )


@each_cut
def test_a_keyframe_restores_the_decoders_state(recorded: Recorded, name: str, cut: int) -> None:
    """Reading the keyframe gives the decoder the same state as reading all earlier segments."""
    paths = list_segments(recorded(name, cut))
    with SegmentReader(paths[0]) as first:
        through = first.decoder()
    for path in paths:
        with SegmentReader(path) as segment:
            decoder, left = segment.decoder(), segment.metadata.keyframe
            rows = [data for batch in segment.batches() for data in batch["data"].to_pylist()]
        for data in rows[:left]:
            decoder.decode(data)
        assert in_force(decoder) == in_force(through)
        for data in rows[left:]:
            through.decode(data)


def in_force(decoder: StreamDecoder) -> object:
    """Return the decoder's state: in_stream, and the Relation and Type messages without xids."""
    described = [*decoder.relations.items(), *decoder.types.items()]
    bare = [(oid, msgspec.structs.replace(one, xid=None)) for oid, one in described]
    return decoder.in_stream, sorted(bare, key=repr)


@pytest.mark.parametrize("name", ["pg18_p4_par_2pc", "pg13_ws_p1"])
def test_metadata_lists_each_schema_version(recorded: Recorded, name: str) -> None:
    sent, paths = recordings.sent(name), list_segments(recorded(name, 151))
    expected, last, lsn = [], dict[int, m.Relation](), 0
    with SegmentReader(paths[0]) as segment:
        decoder = segment.decoder()
    for position, one in enumerate(sent):
        message = decoder.decode(one.data)
        if not isinstance(message, m.Insert | m.Update | m.Delete | m.Truncate):
            lsn = one.wal_start or lsn
        if isinstance(message, m.Relation):
            bare = msgspec.structs.replace(message, xid=None)
            if last.get(message.oid) != bare:
                expected.append((position // 151 + 1, position, lsn, bare.oid, bare.name, len(bare.columns)))
            last[message.oid] = bare
    found = [
        (
            said.number,
            version.position,
            version.lsn,
            version.relation["oid"],
            version.relation["name"],
            columns,
        )
        for said in map(read_metadata, paths)
        for version in said.relations
        for columns in [len(version.relation["columns"])]
    ]
    assert found == expected
    assert len(found) > 10


@pytest.mark.parametrize(
    ("rows", "size", "segment_bytes"), [(25, 1 << 30, 1), (10, 1 << 30, 3000), (1 << 30, 700, 2500)]
)
def test_a_segment_ends_with_the_row_group_that_fills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, size: int, segment_bytes: int
) -> None:
    monkeypatch.setattr(writer, "_BATCH_ROWS", rows)
    monkeypatch.setattr(writer, "_BATCH_BYTES", size)
    name = "pg18_p4_par_2pc"
    sent = recordings.sent(name)
    stored: list[Path] = []
    one = SegmentWriter(
        tmp_path,
        recordings.source(name),
        recordings.FIRST,
        stored=lambda path, _: stored.append(path),
        segment_bytes=segment_bytes,
    )
    for first in range(0, len(sent), 50):
        one.write(sent[first : first + 50], 0)
    one.rotate()
    paths = list_segments(tmp_path)
    assert stored == paths
    assert recordings.stored(tmp_path) == [message.data for message in sent]
    assert recordings.committed(tmp_path) == recordings.captured(name)
    lengths = [sum(map(len, recordings.stored(path))) for path in paths]
    assert len(paths) > 10
    last = max(len(message.data) for message in sent)
    assert all(
        segment_bytes <= length < segment_bytes + min(size, rows * last) + last for length in lengths[:-1]
    )
    for before, after in pairwise(map(read_metadata, paths)):
        assert (before.next_position, before.end_lsn) == (after.first_position, after.start_lsn)
