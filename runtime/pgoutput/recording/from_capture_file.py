"""Capture files as recordings, so that what reads segments can read them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from uuid import uuid4

from pgoutput._stored_stream import Decoded
from pgoutput.capturefile import CaptureFile, Header
from pgoutput.errors import DecodeError, RecordingError
from pgoutput.messages import XLogData
from pgoutput.recording.model import Source
from pgoutput.recording.reader import list_segments
from pgoutput.recording.writer import SEGMENT_BYTES, SegmentWriter, Start


def record_capture_file(
    capture: str | Path, folder: str | Path, *, segment_bytes: int = SEGMENT_BYTES
) -> list[Path]:
    """Write the messages of a capture file as a recording; give its segments.

    Args:
        capture: The capture file.
        folder: Where the segments go: a new folder, or an empty one.
        segment_bytes: A segment ends when its messages have so many bytes.

    Raises:
        RecordingError: The file cannot be read, a message stands where no server sends it, or the folder is
            not empty.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise RecordingError(f"{folder}: a recording of a capture wants an empty folder")
    start = Start(session=1, number=1, position=0, lsn=0)
    with CaptureFile(capture) as opened:
        writer = SegmentWriter(folder, _source(opened.header), start, segment_bytes=segment_bytes)
        decoded = (one for one in opened.messages() if one.message is not None)
        while some := list(islice(decoded, 1_000)):
            try:
                writer.write(map(_envelope, some), 0)
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


def _envelope(one: Decoded) -> XLogData:
    return one.envelope if isinstance(one.envelope, XLogData) else XLogData(0, 0, 0, one.data)
