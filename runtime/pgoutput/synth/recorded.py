"""Scenarios as capture files and as recordings."""

from __future__ import annotations

import gzip
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final
from uuid import uuid4

import msgspec

from pgoutput import envelope
from pgoutput.capturefile import Header, encode_header, encode_record
from pgoutput.messages import XLogData
from pgoutput.synth.options import StreamOptions
from pgoutput.synth.scenario import Scenario
from pgoutput.synth.staging import new_file, new_folder, staged
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_SERVER: Final = "18.4"
"""The server that a scenario does as."""

_PUBLICATION: Final = "synth"


def write_capture_file(scenario: Scenario, path: str | Path, **options: Any) -> None:
    """Write what a walsender sends of a scenario as a capture file.

    Args:
        scenario: The scenario.
        path: Where no file is yet; compressed, if it ends in .gz.
        options: As for `Scenario.stream`.

    Raises:
        RecordingError: The file is there already, or is being made by another.
        ValueError: The protocol version does not have an option.
        ScenarioError: A value has no binary format here.
        OSError: It cannot be written; nothing is left.
    """
    asked, path = msgspec.structs.replace(scenario.options, **options), Path(path)
    new_file(path)
    with staged(path) as stage:
        made = stage / path.name
        with made.open("wb") as file:
            with _compressed(file) if path.suffix == ".gz" else nullcontext(file) as lines:
                lines.write(encode_header(_header(asked)))
                for one in scenario.stream(**options):
                    lines.write(encode_record("copydata", envelope.encode(one)))
            file.flush()
            os.fsync(file.fileno())
        made.rename(path)


def write_recording(
    scenario: Scenario, folder: str | Path, *, segment_bytes: int | None = None, **options: Any
) -> list[Path]:
    """Write what a walsender sends of a scenario as a recording; give its segments.

    Args:
        scenario: The scenario.
        folder: A new folder, or an empty one.
        segment_bytes: A segment ends when its messages have so many bytes; None for as many as a recorder's.
        options: As for `Scenario.stream`.

    Raises:
        RecordingError: The folder is not empty, or is being made by another.
        ValueError: The protocol version does not have an option.
        ScenarioError: A value has no binary format here.
        OSError: It cannot be written; nothing is left.
    """
    from pgoutput.recording import SEGMENT_BYTES, SegmentWriter, SessionStart, Source  # they need numpy

    asked, folder = msgspec.structs.replace(scenario.options, **options), Path(folder)
    new_folder(folder)
    source = Source(
        recording=str(uuid4()),
        system_identifier="",
        server_version=_SERVER,
        database=_PUBLICATION,
        slot=_PUBLICATION,
        publications=(_PUBLICATION,),
        proto_version=asked.proto_version,
        options=asked.asked(),
        slot_two_phase=asked.two_phase,
    )
    with staged(folder) as stage:
        made = stage / folder.name
        made.mkdir()
        start = SessionStart(session=1, number=1, position=0, lsn=0)
        writer = SegmentWriter(made, source, start, segment_bytes=segment_bytes or SEGMENT_BYTES)
        for one in scenario.stream(**options):
            if isinstance(one, XLogData):
                writer.write([one], one.send_time + EPOCH_UNIX_MICROSECONDS)
        writer.rotate()
        made.rename(folder)
    return sorted(folder.iterdir())


def _compressed(file: BinaryIO) -> gzip.GzipFile:
    """The file, to be written compressed; the same content makes the same bytes."""
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)


def _header(asked: StreamOptions) -> Header:
    options = {"publication_names": f'"{_PUBLICATION}"'} | asked.asked()
    return Header(asked.proto_version, options, slot_two_phase=asked.two_phase, server_version=_SERVER)
