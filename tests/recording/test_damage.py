"""Each damaged or missing segment is reported with one clear error."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logicalrep import standin
from logicalrep.errors import RecordingError
from logicalrep.recording import (
    SCHEMA,
    STATE_FILE,
    Directory,
    Metadata,
    Recording,
    RecordingReader,
    SegmentFile,
    SegmentReader,
    SegmentWriter,
    find_inconsistencies,
    list_segments,
    read_metadata,
    segment_name,
)
from logicalrep.recording.segment_file import checksum, message_batch
from logicalrep.recording.segment_format import CHECKSUM_KEY, METADATA_KEY
from tests.recording import recordings
from tests.versions import UNKNOWN

Run = Callable[..., SimpleNamespace]
NAME = "pg18_ws_p4_par_2pc_msg"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of ten segments."""
    folder = tmp_path_factory.mktemp("recording")
    paths = recordings.write(folder, recordings.source(NAME), recordings.sent(NAME), 80)
    assert len(paths) == 10
    return folder


@pytest.fixture
def folder(tmp_path: Path, recording: Path) -> Path:
    """Return a copy of the recording, for a test to damage."""
    return Path(shutil.copytree(recording, tmp_path / "copy"))


def content(path: Path) -> tuple[Metadata, list[dict[str, object]]]:
    with SegmentReader(path) as segment:
        return segment.metadata, [row for batch in segment.batches() for row in batch.to_pylist()]


def refused(path: Path, words: str) -> None:
    """Assert that reading the segment raises a one-line error that begins with the segment's path."""
    for read in (content, lambda path: list(RecordingReader(path).transactions())):
        with pytest.raises(RecordingError, match=f"^{re.escape(f'{path}: ')}{words}.*$") as caught:
            read(path)
        assert "\n" not in str(caught.value)


# Bytes


def test_a_changed_byte_is_reported_or_has_no_effect(tmp_path: Path, recording: Path) -> None:
    """A changed byte either raises an error or does not change what is read."""
    original = recording / segment_name(5)
    raw, whole = original.read_bytes(), content(original)
    generator, told, same = random.Random(18), 0, 0
    path = tmp_path / segment_name(5)
    text = raw.index(said(original)[METADATA_KEY][:20])
    flips = [(place, generator.randrange(1, 256)) for place in generator.sample(range(len(raw)), 400)]
    flips += [(place, bits) for place in range(text - 1200, text) for bits in (0x10, 0x80)]  # the footer
    for place, bits in flips:
        damaged = bytearray(raw)
        damaged[place] ^= bits
        path.write_bytes(damaged)
        try:
            assert content(path) == whole
        except RecordingError as error:
            told += str(error).startswith(f"{path}: ")
        else:
            same += 1
    assert told + same == len(flips)
    assert told > 4 * same


def test_a_truncated_file_is_reported(tmp_path: Path, recording: Path) -> None:
    raw = (recording / segment_name(5)).read_bytes()
    path = tmp_path / segment_name(5)
    for length in [0, 1, 4, 8, 12, *range(16, len(raw), 97), len(raw) - 1]:
        path.write_bytes(raw[:length])
        refused(path, "cannot be read as a Parquet file")


def test_a_damaged_page_is_found_by_its_checksum(folder: Path) -> None:
    """Page checksums find damage that zstd does not detect."""
    path = folder / segment_name(5)
    raw = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(3)
    raw[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(raw)
    assert read_metadata(path).number == 5
    refused(path, r"the file is damaged \(.*checksum")


@pytest.mark.parametrize("raw", [b"", b"PAR1", b"PAR1PAR1", b"PAR1" * 1000, b"nonsense" * 100, bytes(4096)])
def test_files_that_are_not_parquet_are_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "1.parquet"
    path.write_bytes(raw)
    refused(path, "cannot be read as a Parquet file")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    refused(tmp_path / "1.parquet", "cannot be read as a Parquet file .*No such file")
    (tmp_path / "2.parquet").mkdir()
    with pytest.raises(RecordingError, match="cannot be read as a Parquet file"):
        read_metadata(tmp_path / "2.parquet")


# Parquet files that are not segments, or have wrong metadata


def said(path: Path) -> dict[bytes, bytes]:
    with pq.ParquetFile(path) as file:
        return dict(file.metadata.metadata)


def rewrite(path: Path, table: pa.Table | None = None, **changes: Any) -> None:
    """Replace metadata fields or the rows of a segment; the metadata's checksum stays valid."""
    raw = msgspec.json.encode(msgspec.json.decode(said(path)[METADATA_KEY]) | changes)
    table = pq.read_table(path) if table is None else table
    metadata = {METADATA_KEY: raw, CHECKSUM_KEY: checksum(raw)}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_a_rewritten_segment_is_accepted(folder: Path) -> None:
    """A segment that the helper `rewrite` has written without changes is valid."""
    before = content(folder / segment_name(3))
    rewrite(folder / segment_name(3))
    assert content(folder / segment_name(3)) == before


def test_a_parquet_file_without_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    for schema in (SCHEMA, pa.schema([("x", pa.int64())]), pa.schema([])):
        pq.write_table(schema.empty_table(), path)
        refused(path, "not a segment: the Parquet file has no metadata of logicalrep")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 1}, "expected format 2 of the recording, found format 1"),
        ({"format": 3}, "expected format 2 of the recording, found format 3"),
        ({"format": 9, "keyframe": "of another kind"}, "expected format 2 of the recording, found format 9"),
        ({"format": "new"}, "the metadata of the segment cannot be read"),
        ({"messages": 81}, r"the file is damaged: expected \d+ rows, found"),
        ({"keyframe": 0}, r"the file is damaged: expected \d+ rows, found"),
        ({"number": None}, "the metadata of the segment cannot be read .*number"),
        ({"kind": "other"}, "the metadata of the segment cannot be read .*kind"),
        ({"source": {}}, "the metadata of the segment cannot be read .*source"),
    ],
)
def test_invalid_metadata_is_reported(folder: Path, changes: dict[str, object], words: str) -> None:
    rewrite(folder / segment_name(3), **changes)
    refused(folder / segment_name(3), words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"proto_version": UNKNOWN}, f"there is no protocol version {UNKNOWN}"),
        ({"options": {"streaming": "sometimes"}}, "streaming is one of off, on, parallel, not 'sometimes'"),
        ({"proto_version": 3}, "streaming = parallel needs protocol version 4, not 3"),
    ],
)
def test_an_unknown_protocol_version_is_reported_when_decoding(
    folder: Path, changes: dict[str, object], words: str
) -> None:
    """Metadata with an unknown version or option can be read; decoding the messages raises an error."""
    path = folder / segment_name(1)
    rewrite(path, source=msgspec.to_builtins(read_metadata(path).source) | changes)
    assert read_metadata(path).number == 1
    with pytest.raises(RecordingError, match=f"^{path}: {words}"):
        RecordingReader(folder)
    with SegmentReader(path) as segment, pytest.raises(RecordingError, match=f"^{path}: {words}"):
        segment.decoder()


def test_metadata_with_a_wrong_checksum_is_reported(folder: Path) -> None:
    path = folder / segment_name(3)
    table = pq.read_table(path)
    metadata = said(path)
    raw = metadata[METADATA_KEY].replace(b'"number":3', b'"number":4')
    assert raw != metadata[METADATA_KEY]
    for other in (metadata | {METADATA_KEY: raw}, {METADATA_KEY: metadata[METADATA_KEY]}):
        pq.write_table(table.replace_schema_metadata(other), path)
        refused(path, "the file is damaged .*checksum")


@pytest.mark.parametrize("name", SCHEMA.names)
def test_other_columns_are_reported(folder: Path, name: str) -> None:
    path = folder / segment_name(3)
    table = pq.read_table(path)
    number = table.schema.get_field_index(name)
    for other in (
        table.drop_columns(name),
        table.rename_columns({name: "another"}),
        table.set_column(number, name, pa.nulls(len(table), pa.string())),
    ):
        rewrite(path, other)
        refused(path, "not a segment: the Parquet file has other columns than a segment")
        rewrite(path, table)


def test_missing_rows_are_reported(folder: Path) -> None:
    path = folder / segment_name(3)
    rewrite(path, pq.read_table(path).slice(1))
    refused(path, r"the file is damaged: expected \d+ rows, found")


def test_invalid_messages_are_reported_with_their_position(folder: Path) -> None:
    path = folder / segment_name(1)
    table = pq.read_table(path)
    data = [*table["data"].to_pylist()[:-1], b"\xff"]
    rewrite(path, table.set_column(3, SCHEMA.field("data"), [data]))
    for read in (RecordingReader.messages, RecordingReader.transactions):
        with (
            RecordingReader(path) as segments,
            pytest.raises(RecordingError, match=f"^{path}: position 79: "),
        ):
            list(read(segments))
    told: list[RecordingError] = []
    with RecordingReader(path, on_error=told.append) as segments:
        assert len(list(segments.messages())) == 79
    assert [str(error).startswith(f"{path}: position 79: ") for error in told] == [True]


# Folders


def gaps(folder: Path) -> list[str]:
    return list(find_inconsistencies([read_metadata(path) for path in list_segments(folder)]))


def test_a_folder_without_segments_is_reported(tmp_path: Path) -> None:
    (tmp_path / "notes.parquet").write_bytes(b"")
    (tmp_path / ".0000000001.parquet.partial").write_bytes(b"")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            RecordingError,
            match=f"^{folder}: no segments found: give the folder that `logicalrep record` writes",
        ):
            list_segments(folder)
    with pytest.raises(RecordingError, match="no segments found"):
        RecordingReader(tmp_path)
    assert not list(find_inconsistencies([]))


def test_missing_segments_are_reported(folder: Path) -> None:
    assert gaps(folder) == []
    lsns = {one.number: (one.start_lsn, one.end_lsn) for one in map(read_metadata, list_segments(folder))}
    (folder / segment_name(4)).unlink()
    assert gaps(folder)[:2] == [
        "segment 4 is missing",
        "between segments 3 and 5, expected position 240, found 320",
    ]
    (folder / segment_name(5)).unlink()
    (folder / segment_name(1)).unlink()
    found = gaps(folder)
    assert found[:2] == ["segment 1 is missing", "segments 4 to 5 are missing"]
    assert "between segments 3 and 6, expected position 240, found 400" in found
    assert any("expected LSN" in line for line in found) == (lsns[3][1] != lsns[6][0])
    (folder / segment_name(2)).unlink()
    assert gaps(folder)[0] == "segments 1 to 2 are missing"


def test_a_gap_between_lsns_is_reported(folder: Path) -> None:
    rewrite(folder / segment_name(7), start_lsn=0x1_00000002)
    end = read_metadata(folder / segment_name(6)).end_lsn
    assert gaps(folder) == [
        f"between segments 6 and 7, expected LSN {end >> 32:X}/{end & 0xFFFFFFFF:X}, found 1/2"
    ]


def test_swapped_files_are_reported(folder: Path) -> None:
    one, other = folder / segment_name(3), folder / segment_name(4)
    one.rename(folder / "x")
    other.rename(one)
    (folder / "x").rename(other)
    found = gaps(folder)
    assert "after segment 4, expected segment 5, found segment 3: a file has the wrong name" in found
    assert "between segments 4 and 3, expected position 320, found 160" in found


def test_a_duplicate_segment_is_reported(folder: Path) -> None:
    shutil.copy(folder / segment_name(3), folder / "0000000003a.parquet")
    assert (
        gaps(folder)[0] == "after segment 3, expected segment 4, found segment 3: a file has the wrong name"
    )


@pytest.mark.parametrize("key", ["recording", "slot", "database", "system_identifier"])
def test_segments_of_another_recording_are_reported(folder: Path, key: str) -> None:
    path = folder / segment_name(10)
    source = msgspec.to_builtins(read_metadata(path).source)
    rewrite(path, source=source | {key: "other"})
    assert gaps(folder) == [f"segment 10 has the {key} other, but segment 9 has {source[key]}"]


def test_descending_session_numbers_are_reported(folder: Path) -> None:
    rewrite(folder / segment_name(5), session=2)
    assert gaps(folder) == ["between segments 5 and 6, expected session 2 or later, found session 1"]


# Atomic files


def test_readers_do_not_see_unfinished_segments(tmp_path: Path) -> None:
    sent = recordings.sent(NAME)
    jobs: list[Any] = []
    writer = SegmentWriter(tmp_path, recordings.source(NAME), recordings.FIRST, run=jobs.append)
    writer.write(sent[:50], 0)
    writer.rotate()
    writer.write(sent[50:], 0)
    writer.rotate()
    assert len(jobs) == 4  # two jobs per segment: rows and end
    seen: list[list[str]] = []
    for job in jobs:
        job()
        seen.append(sorted(path.name for path in tmp_path.iterdir()))
        listed = [path.name for path in tmp_path.glob("[0-9]*.parquet")]
        assert [read_metadata(tmp_path / name).number for name in sorted(listed)] == list(
            range(1, len(listed) + 1)
        )
    assert seen == [
        [".0000000001.parquet.partial"],
        ["0000000001.parquet"],
        [".0000000002.parquet.partial", "0000000001.parquet"],
        ["0000000001.parquet", "0000000002.parquet"],
    ]


def test_content_is_synced_before_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    path = tmp_path / segment_name(1)
    real = os.fsync

    def sync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    recordings.write(tmp_path, recordings.source(NAME), recordings.sent(NAME))
    assert synced == [(f".{path.name}.partial", False), (tmp_path.name, True)]


def test_unfinished_files_are_removed(folder: Path) -> None:
    whole = list_segments(folder)
    SegmentFile(folder / segment_name(11)).add(0, [message_batch([0], [0], [b"x"])])
    (folder / "._recording.json.partial").write_bytes(b"{")
    (folder / ".snapshot.partial").mkdir()
    (folder / ".hidden").write_bytes(b"")
    assert list_segments(folder) == whole
    assert (folder / f".{segment_name(11)}.partial").exists()
    Directory(folder).remove_partial()
    assert {path.name for path in folder.iterdir()} == {
        *(path.name for path in whole),
        ".snapshot.partial",
        ".hidden",
    }
    Directory(folder).remove_partial()


def test_a_reader_refuses_a_recording_with_a_missing_segment(tmp_path: Path) -> None:
    """RecordingReader raises an error, or with `on_error` reports the error and continues."""
    messages = recordings.sent("pg18_p1")
    recordings.write(tmp_path, recordings.source("pg18_p1"), messages, 151)[1].unlink()
    with pytest.raises(RecordingError, match="segment 2 is missing"), RecordingReader(tmp_path):
        pass
    told: list[RecordingError] = []
    with RecordingReader(tmp_path, on_error=told.append) as segments:
        assert next(segments.records()).number == 0
    assert "segment 2 is missing" in str(told[0])


# Missing last segments


def acknowledged(folder: Path, last: int) -> None:
    """Write the state file that the recorder writes after acknowledging a segment."""
    state = {"slot": "slot", "last_segment": last, "unknown to readers": [1]}
    (folder / STATE_FILE).write_bytes(msgspec.json.encode(state))


def read_stream(place: str) -> None:
    with RecordingReader(place) as segments:
        list(segments.records())


READERS: list[Callable[[str], object]] = [
    read_stream,
    Recording,
    lambda place: Recording(f"file://{place}", may_be_empty=True),
    standin.RecordedSource,
]


@pytest.mark.parametrize("read", READERS, ids=["segments", "views", "views of a URI", "stand-in"])
def test_missing_last_segments_are_reported(folder: Path, read: Callable[[str], object]) -> None:
    acknowledged(folder, 9)  # the tenth is stored, but not yet acknowledged
    read(str(folder))
    (folder / segment_name(10)).unlink()
    read(str(folder))
    (folder / segment_name(9)).unlink()
    with pytest.raises(RecordingError, match="segment 9 is missing, although acknowledged to the server"):
        read(str(folder))
    (folder / segment_name(8)).unlink()
    with pytest.raises(RecordingError, match="segments 8 to 9 are missing"):
        read(str(folder))


def test_refresh_reports_missing_last_segments(folder: Path) -> None:
    recording = Recording(folder)
    acknowledged(folder, 11)
    with pytest.raises(RecordingError, match="segment 11 is missing"):
        recording.refresh()


@pytest.mark.parametrize("command", ["segments", "check", "decode", "inspect"])
def test_commands_report_missing_last_segments(run: Run, folder: Path, command: str) -> None:
    acknowledged(folder, 11)
    done = run(command, folder)
    assert (done.code, done.err) == (
        2,
        f"logicalrep: {folder}: segment 11 is missing, although acknowledged to the server: put missing "
        "files back\n",
    )


def test_an_invalid_state_file_is_reported(folder: Path) -> None:
    (folder / STATE_FILE).write_bytes(b"{")
    with pytest.raises(RecordingError, match=f"^{re.escape(str(folder / STATE_FILE))}: the file is damaged"):
        read_stream(str(folder))
