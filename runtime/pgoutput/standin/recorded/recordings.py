"""Recordings to what their servers sent: messages with their LSNs, session by session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from pgoutput import envelope
from pgoutput.capturefile import CaptureFile
from pgoutput.errors import DecodeError, RecordingError
from pgoutput.messages import XLogData
from pgoutput.standin.commands import boolean
from pgoutput.standin.options import read_names
from pgoutput.standin.protocol import Refused
from pgoutput.standin.source import Wanted
from pgoutput.stream import StreamDecoder

if TYPE_CHECKING:
    from pgoutput.recording import Metadata

Received: TypeAlias = tuple[int, int, bytes]
"""The number of the session, the LSN of the envelope, and the message."""


_VERSION: Final = "18.4"
_SYSTEM: Final = "7000000000000000001"
"""Where the recording does not say."""


class ServedRecording(msgspec.Struct, frozen=True, kw_only=True):
    """A recording, and how its stream was asked for."""

    path: Path
    asked: Wanted
    """Without publications if it is not known which."""
    server_version: str
    database: str = ""
    system_identifier: str = _SYSTEM
    metadata: Sequence[Metadata] = ()
    """What its segments say of themselves."""

    def decoder(self) -> StreamDecoder:
        """A decoder for a session of it."""
        return StreamDecoder(self.asked.proto_version, streaming=self.asked.streaming, two_phase=True)

    def received(self) -> Iterator[Received]:
        """What its server sent.

        Raises:
            RecordingError: It cannot be read.
        """
        return _of_segments(self.path) if _is_segments(self.path) else _of_capture(self.path)


def open_recording(path: str | Path) -> ServedRecording:
    """What a capture file, a segment, or the folder of a recording holds.

    Raises:
        RecordingError: It cannot be read.
    """
    path = Path(path)
    if not _is_segments(path):
        with CaptureFile(path) as capture:
            header = capture.header
        asked = _asked(path, header.proto_version, header.options, header.slot_two_phase)
        return ServedRecording(path=path, asked=asked, server_version=header.server_version or _VERSION)
    # They need pyarrow.
    from pgoutput.recording import (
        find_inconsistencies,
        last_acknowledged,
        list_segments,
        locate,
        read_metadata,
    )

    last = last_acknowledged(locate(path)) if path.is_dir() else 0
    paths = list_segments(path) if path.is_dir() else [path]
    metadata = [one for one in map(read_metadata, paths) if one.kind == "stream"]
    for gap in find_inconsistencies(metadata, metadata[0].number, last) if metadata else ():
        raise RecordingError(f"{path}: {gap}")
    options = {(one.source.proto_version, tuple(one.source.options.items())) for one in metadata}
    if len(options) != 1:
        what = "its sessions were asked for with different options" if options else "it has no stream"
        raise RecordingError(f"{path}: {what}: only a recording of one stream can be served")
    if metadata[0].keyframe:
        raise RecordingError(f"{path}: it begins in the middle of a recording: serve the whole of it")
    source = metadata[-1].source
    asked = _asked(path, source.proto_version, source.options, source.slot_two_phase)
    if source.publications:
        asked = msgspec.structs.replace(asked, publication_names=source.publications)
    return ServedRecording(
        path=path,
        asked=asked,
        server_version=source.server_version or _VERSION,
        database=source.database,
        system_identifier=source.system_identifier or _SYSTEM,
        metadata=metadata,
    )


def _asked(path: Path, proto_version: int, options: dict[str, str], two_phase: bool) -> Wanted:
    def is_on(name: str) -> bool:
        try:
            return name in options and boolean(name, str(options[name]))
        except Refused as refused:
            raise RecordingError(f"{path}: {refused}") from None

    return Wanted(
        proto_version=proto_version,
        publication_names=_publications(options),
        streaming=options.get("streaming", "off"),  # type: ignore[arg-type]
        two_phase=two_phase or is_on("two_phase"),
        binary=is_on("binary"),
        messages=is_on("messages"),
        origin=options.get("origin", "any"),  # type: ignore[arg-type]
    )


def _publications(options: dict[str, str]) -> tuple[str, ...]:
    try:
        return read_names(str(options["publication_names"])) if "publication_names" in options else ()
    except Refused:
        return ()


def _is_segments(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".parquet"


def _of_capture(path: Path) -> Iterator[Received]:
    with CaptureFile(path) as capture:
        for record in capture.records():
            if record.channel == "data":
                yield 1, 0, record.data
            elif record.channel == "copydata":
                try:
                    outer = envelope.decode(record.data)
                except DecodeError as error:
                    raise RecordingError(f"{path}:{record.number}: {error}") from None
                if isinstance(outer, XLogData):
                    yield 1, outer.wal_start, outer.data


def _of_segments(path: Path) -> Iterator[Received]:
    from pgoutput.recording import SegmentReader, list_segments  # they need pyarrow

    for one in list_segments(path) if path.is_dir() else [path]:
        with SegmentReader(one) as segment:
            if segment.metadata.kind != "stream":
                continue
            session = segment.metadata.session
            for batch in segment.batches():
                lsns, data = batch["lsn"].to_pylist(), batch["data"].to_pylist()
                for lsn, message in zip(lsns, data, strict=True):
                    if lsn is not None:  # not of a keyframe: the messages before have said the same
                        yield session, lsn, message
