"""Write the stream of a scenario to a capture file or a recording."""

from __future__ import annotations

import gzip
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from logicalrep import envelope
from logicalrep.capturefile import Header, encode_header, encode_record
from logicalrep.messages import XLogData
from logicalrep.recording import SEGMENT_BYTES, SegmentWriter, SessionStart, Source
from logicalrep.synth.atomic_output import new_output
from logicalrep.synth.options import StreamOptions
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS

if TYPE_CHECKING:
    from logicalrep.synth.scenario import Scenario

_NAME: Final = "synth"
"""Name of database, slot and publication in capture files and recordings of synthetic streams."""


def write_capture_file(scenario: Scenario, path: str | Path, **options: Any) -> None:
    """Write the stream of a scenario to a capture file.

    Args:
        scenario: The scenario.
        path: A file that does not exist yet; compressed if the name ends in .gz.
        options: Keyword arguments of `Scenario.stream`.

    Raises:
        RecordingError: The file exists, or another process is writing it.
        ValueError: The protocol version or the server does not support an option.
        ScenarioError: A value cannot be converted to binary format.
        OSError: The file cannot be written. No partial output is left.
    """
    stream_options, path = msgspec.structs.replace(scenario.options, **options), Path(path)
    with new_output(path) as (temporary,), temporary.open("wb") as file:
        # Without name and time in the gzip header, the same stream always gives the same bytes.
        compressed = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if path.suffix == ".gz" else None
        with compressed or nullcontext(file) as lines:
            lines.write(header_line(stream_options, scenario.server_version))
            for message in scenario.stream(**options):
                lines.write(encode_record("copydata", envelope.encode(message)))
        file.flush()


def write_recording(
    scenario: Scenario, recording: str | Path, *, segment_bytes: int = SEGMENT_BYTES, **options: Any
) -> list[Path]:
    """Write the stream of a scenario as a recording, and return the paths of its segments.

    Args:
        scenario: The scenario.
        recording: A folder that does not exist or is empty.
        segment_bytes: Size of a segment's messages in bytes, after which a new segment starts.
        options: Keyword arguments of `Scenario.stream`.

    Raises:
        RecordingError: The folder is not empty, or another process is writing to it.
        ValueError: The protocol version or the server does not support an option.
        ScenarioError: A value cannot be converted to binary format.
        OSError: The folder cannot be written. No partial output is left.
    """
    stream_options, folder = msgspec.structs.replace(scenario.options, **options), Path(recording)
    source = make_source(stream_options, scenario.server_version, str(uuid4()))
    with new_output(folder, folder=True) as (temporary,):
        temporary.mkdir()
        start = SessionStart(session=1, number=1, position=0, lsn=0)
        writer = SegmentWriter(temporary, source, start, segment_bytes=segment_bytes)
        for message in scenario.stream(**options):
            if isinstance(message, XLogData):
                writer.write([message], message.send_time + EPOCH_UNIX_MICROSECONDS)
        writer.rotate()
    return sorted(folder.iterdir())


def header_line(options: StreamOptions, server_version: str) -> bytes:
    """Return the header line of a capture file of a synthetic stream."""
    return encode_header(
        Header(
            options.proto_version,
            {"publication_names": f'"{_NAME}"'} | options.requested(),
            slot_two_phase=options.two_phase,
            server_version=server_version,
        )
    )


def make_source(options: StreamOptions, server_version: str, recording_id: str) -> Source:
    """Return the `Source` of a recording of a synthetic stream: its server, slot and stream options."""
    return Source(
        recording=recording_id,
        system_identifier="",
        server_version=server_version,
        database=_NAME,
        slot=_NAME,
        publications=(_NAME,),
        proto_version=options.proto_version,
        options=options.requested(),
        slot_two_phase=options.two_phase,
    )
