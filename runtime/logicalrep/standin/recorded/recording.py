"""Read recorded streams: the messages of a recording or capture file with their LSNs and sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from logicalrep import envelope
from logicalrep._servers import default_server, server_version
from logicalrep.capturefile import CaptureFile
from logicalrep.errors import DecodeError, RecordingError
from logicalrep.messages import XLogData
from logicalrep.standin.protocol import ServerError
from logicalrep.standin.replication import parse_boolean, parse_identifier_list
from logicalrep.standin.source import PluginOptions
from logicalrep.stream import StreamDecoder

if TYPE_CHECKING:
    from logicalrep.recording import Metadata

RecordedMessage: TypeAlias = tuple[int, int, bytes]
"""A recorded message: number of its session, LSN of its envelope (0 if unknown), and its bytes."""


_DEFAULT_SYSTEM_IDENTIFIER: Final = "7000000000000000001"


class RecordedStream(msgspec.Struct, frozen=True, kw_only=True):
    """A recording or capture file, and the options with which its stream was recorded."""

    path: str
    """Path of the capture file, or path or URL of the segment or of the recording's folder."""
    options: PluginOptions
    """Options of START_REPLICATION. `publication_names` is empty if the recording does not contain them."""
    server_version: str
    """PostgreSQL version of the recorded server."""
    database: str = ""
    """Name of the recorded database, or the empty string if the name is not known."""
    system_identifier: str = _DEFAULT_SYSTEM_IDENTIFIER
    """System identifier of the recorded server."""
    metadata: Sequence[Metadata] = ()
    """Metadata of the segments; empty for a capture file."""

    def decoder(self) -> StreamDecoder:
        """Return a new decoder for the messages of one session."""
        return StreamDecoder(self.options.proto_version, streaming=self.options.streaming, two_phase=True)

    def messages(self) -> Iterator[RecordedMessage]:
        """Return the recorded messages in order.

        Raises:
            RecordingError: The recording cannot be read.
        """
        return _read_segments(self.path) if _is_recording(self.path) else _read_capture_file(self.path)


def open_stream(path: str | PathLike[str]) -> RecordedStream:
    """Open a capture file, a segment, or the folder of a recording.

    Raises:
        RecordingError: The recording cannot be read, is incomplete, or contains more than one stream.
    """
    path = fspath(path)
    if not _is_recording(path):
        with CaptureFile(path) as capture:
            header = capture.header
        options = _plugin_options(path, header.proto_version, header.options, header.slot_two_phase)
        version = header.server_version or server_version(default_server(header.proto_version))
        return RecordedStream(path=path, options=options, server_version=version)
    # logicalrep.recording needs pyarrow, but a capture file can be served without pyarrow: import it only
    # here.
    from logicalrep.recording import (
        find_inconsistencies,
        last_acknowledged,
        locate,
        read_metadata,
        segments_at,
    )

    location = locate(path)
    last = last_acknowledged(location) if location.is_folder else 0
    paths = segments_at(location)
    # Leave out session 0, the initial snapshot. Rows that were copied later are part of the stream.
    metadata = [one for one in map(read_metadata, paths) if one.session]
    for gap in find_inconsistencies(metadata, metadata[0].number, last) if metadata else ():
        raise RecordingError(f"{path}: {gap}")
    distinct = {(one.source.proto_version, tuple(one.source.options.items())) for one in metadata}
    if len(distinct) != 1:
        problem = "its sessions have different stream options" if distinct else "it has no messages"
        raise RecordingError(
            f"{path}: the recording cannot be served: {problem}. Give a recording with one set of options"
        )
    if metadata[0].keyframe:
        raise RecordingError(
            f"{path}: the file is not the first segment of its recording: give the folder of the recording"
        )
    source = metadata[-1].source
    options = _plugin_options(path, source.proto_version, source.options, source.slot_two_phase)
    if source.publications:
        options = msgspec.structs.replace(options, publication_names=source.publications)
    return RecordedStream(
        path=path,
        options=options,
        server_version=source.server_version or server_version(default_server(source.proto_version)),
        database=source.database,
        system_identifier=source.system_identifier or _DEFAULT_SYSTEM_IDENTIFIER,
        metadata=metadata,
    )


def _plugin_options(
    path: str, proto_version: int, options: dict[str, str], slot_two_phase: bool
) -> PluginOptions:
    def is_on(name: str) -> bool:
        try:
            return name in options and parse_boolean(name, str(options[name]))
        except ServerError as error:
            raise RecordingError(
                f"{path}: a recorded stream option is invalid: {error}. Restore the recording or capture "
                "file from a copy"
            ) from None

    return PluginOptions(
        proto_version=proto_version,
        publication_names=_publication_names(options),
        streaming=options.get("streaming", "off"),  # type: ignore[arg-type]
        two_phase=slot_two_phase or is_on("two_phase"),
        binary=is_on("binary"),
        messages=is_on("messages"),
        origin=options.get("origin", "any"),  # type: ignore[arg-type]
    )


def _publication_names(options: dict[str, str]) -> tuple[str, ...]:
    try:
        return parse_identifier_list(str(options.get("publication_names", "")))
    except ServerError:
        return ()


def _is_recording(path: str) -> bool:
    return "://" in path or path.endswith(".parquet") or Path(path).is_dir()


def _read_capture_file(path: str) -> Iterator[RecordedMessage]:
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


def _read_segments(path: str) -> Iterator[RecordedMessage]:
    from logicalrep.recording import SegmentReader, locate, segments_at  # needs pyarrow

    for segment_path in segments_at(locate(path)):
        with SegmentReader(segment_path) as segment:
            session = segment.metadata.session
            if not session:  # session 0 is the snapshot
                continue
            for batch in segment.batches():
                lsns, data = batch["lsn"].to_pylist(), batch["data"].to_pylist()
                for lsn, message in zip(lsns, data, strict=True):
                    if lsn is not None:  # a keyframe repeats earlier messages and has no LSN
                        yield session, lsn, message
