"""Convert a capture file to a recording."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from uuid import uuid4

from logicalrep._stored_stream import DecodedRecord
from logicalrep.capturefile import CaptureFile, Header
from logicalrep.errors import DecodeError, RecordingError
from logicalrep.messages import XLogData
from logicalrep.recording.directory import make_folder
from logicalrep.recording.reader import list_segments
from logicalrep.recording.segment_format import Source
from logicalrep.recording.writer import SEGMENT_BYTES, SegmentWriter, SessionStart


def record_capture_file(
    capture: str | Path, recording: str | Path, *, segment_bytes: int = SEGMENT_BYTES
) -> list[Path]:
    """Convert a capture file to a recording of one session; return the paths of its segments.

    Args:
        capture: Path of the capture file.
        recording: Folder of the recording, which is created if it does not exist; an existing folder must be
            empty.
        segment_bytes: Size of the messages after which a new segment is started, in bytes.

    Raises:
        RecordingError: The capture file cannot be read, a message is out of place, or the folder is not
            empty.
    """
    folder = Path(recording)
    make_folder(folder)
    if any(folder.iterdir()):
        raise RecordingError(f"{folder}: the folder has files: give a new or empty folder for the recording")
    start = SessionStart(session=1, number=1, position=0, lsn=0)
    with CaptureFile(capture) as opened:
        writer = SegmentWriter(folder, _source(opened.header), start, segment_bytes=segment_bytes)
        decoded = (record for record in opened.messages() if record.message is not None)
        while records := list(islice(decoded, 1_000)):
            try:
                writer.write(map(_envelope, records), 0)
            except DecodeError as error:
                raise RecordingError(f"{capture}: {error}") from None
        writer.rotate()
    return list_segments(folder)


def _source(header: Header) -> Source:
    options = {name: str(value) for name, value in header.options.items()}
    return Source(
        recording=str(uuid4()),
        system_identifier="",
        server_version=header.server_version,
        database="",
        slot="",
        publications=(),
        proto_version=header.proto_version,
        options=options,
        slot_two_phase=header.slot_two_phase,
    )


def _envelope(record: DecodedRecord) -> XLogData:
    return (
        record.envelope
        if isinstance(record.envelope, XLogData)
        else XLogData(wal_start=0, wal_end=0, send_time=0, data=record.data)
    )
