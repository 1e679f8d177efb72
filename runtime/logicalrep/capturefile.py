"""Capture files: messages of a stream as JSON lines (`.jsonl`), optionally compressed (`.jsonl.gz`).

`CaptureFile` reads a capture file. `encode_header` and `encode_record` return the lines of a capture file,
for programs that write one.

The first line is the header, with protocol version and options. Every other line holds one record in hex:
`data`, a pgoutput message, as the server's SQL functions return it; `copydata`, an envelope from the
walsender; or `sent`, an envelope from the walsender's client.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from logicalrep._stored_stream import Channel, Record, StoredStream
from logicalrep.errors import RecordingError
from logicalrep.messages import Streaming
from logicalrep.stream import StreamDecoder
from logicalrep.versions import CODECS, OPTIONS

__all__ = [
    "CaptureFile",
    "Header",
    "Record",
    "encode_header",
    "encode_record",
]


class Header(msgspec.Struct, frozen=True):
    """The header of a capture file. The JSON object may have other keys too, which readers ignore."""

    proto_version: int
    options: dict[str, Any] = {}
    """Options given to START_REPLICATION or to an SQL function such as pg_logical_slot_get_binary_changes,
    by name, except proto_version."""
    slot_two_phase: bool = False
    """Whether the slot sends prepared transactions, whatever the protocol version."""
    server_version: str = ""
    """Version of the PostgreSQL server; empty if unknown."""

    @property
    def streaming(self) -> Streaming:
        """Value of the option `streaming`; `off` if the option is missing."""
        value: Streaming = self.options.get("streaming", "off")
        return value

    def decoder(self) -> StreamDecoder:
        """Return a new decoder for the messages of the file.

        Raises:
            ValueError: The protocol version is unknown, or does not support this value of `streaming`.
        """
        return StreamDecoder(self.proto_version, streaming=self.streaming, two_phase=self.slot_two_phase)


class CaptureFile(StoredStream):
    """An opened capture file; a context manager.

    Args:
        path: Path of the file. Compression is detected from the content, not from the name.
        content: Bytes of the file, if they are in memory already; `path` is then only the file's name in
            errors.
        on_error: Called with the error of each record that cannot be read or decoded; the record is then
            skipped. None raises the error. Errors in the header are always raised.

    Attributes:
        header: The header of the file.

    Raises:
        RecordingError: The file does not exist, is empty, or does not begin with a header.
    """

    numbered_by = "line"

    def __init__(
        self,
        path: str | Path,
        *,
        content: bytes | None = None,
        on_error: Callable[[RecordingError], None] | None = None,
    ) -> None:
        self.path: Path = Path(path)
        super().__init__(None)  # errors in the header are raised
        self._file = self._open(content)
        self._lines = self._read_lines()
        try:
            self.header: Header = self._header()
            self.decoder: StreamDecoder = self.header.decoder()
        except ValueError as error:
            self.close()
            raise self._error(1, str(error)) from None
        except RecordingError:
            self.close()
            raise
        self._on_error = on_error

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._raw.close()  # GzipFile.close does not close the underlying file

    def records(self) -> Iterator[Record]:
        """Yield the records that follow the header.

        Raises:
            RecordingError: A line is not a JSON object with hex in `data`, `copydata` or `sent`, or the file
                ends unexpectedly, and there is no callback `on_error`.
        """
        for number, line in self._lines:
            if not line.strip():
                continue
            try:
                yield _record(number, line)
            except ValueError as error:
                self._report(self._error(number, str(error)))

    @property
    def name(self) -> str:
        """Name of the file without `.jsonl` and `.gz`."""
        return capture_name(self.path)

    def _open(self, content: bytes | None) -> BinaryIO:
        try:
            whole = None if content is None else cast(io.RawIOBase, io.BytesIO(content))
            self._raw = self.path.open("rb") if whole is None else io.BufferedReader(whole)
            compressed = self._raw.peek(2).startswith(b"\x1f\x8b")
        except OSError as error:
            raise RecordingError(f"{self.path}: {error.strerror or error}") from None
        return cast(BinaryIO, gzip.open(self._raw)) if compressed else self._raw

    def _read_lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        try:
            for number, line in enumerate(self._file, start=1):
                yield number, line
        except (EOFError, zlib.error, OSError) as error:
            text = f"the file is cut off or damaged here: {error}".rstrip(".")
            self._report(self._error(number + 1, text))

    def _header(self) -> Header:
        _, line = next(self._lines, (1, b""))
        required = "the first line must be a JSON object with proto_version"
        if not line:
            raise self._error(1, f"no header, the file is empty: {required}")
        try:
            header = msgspec.json.decode(line, type=Header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(1, f"no header: {required} ({error})") from None
        if header.proto_version not in CODECS:
            known = ", ".join(map(str, CODECS))
            raise self._error(
                1, f"proto_version {header.proto_version} is not known; the versions are {known}"
            )
        if header.streaming not in list(OPTIONS["streaming"]):  # a list, as the value may be unhashable
            known = ", ".join(OPTIONS["streaming"])
            raise self._error(1, f"streaming is one of {known}, not {header.streaming!r}")
        return header

    def _error(self, number: int | None, text: str) -> RecordingError:
        return RecordingError(f"{self.path}:{number}: {text}")


def capture_name(path: str | Path) -> str:
    """Return the name of a capture file without folder, `.jsonl` and `.gz`."""
    return Path(path).name.removesuffix(".gz").removesuffix(".jsonl")


class _Line(msgspec.Struct):
    data: str | None = None
    copydata: str | None = None
    sent: str | None = None


def _record(number: int, line: bytes) -> Record:
    try:
        fields = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"expected a JSON object with hexadecimal text in data, copydata or sent ({error})"
        ) from None
    channels: tuple[Channel, ...] = ("data", "copydata", "sent")
    present = [(channel, text) for channel in channels if (text := getattr(fields, channel)) is not None]
    if len(present) != 1:
        raise ValueError(f"exactly one of data, copydata and sent is required, {len(present)} are present")
    channel, text = present[0]
    try:
        return Record(number, channel, bytes.fromhex(text))
    except ValueError:
        raise ValueError(f"{channel} is not hex") from None


def encode_header(header: Header) -> bytes:
    """Return the first line of a capture file, with its line break."""
    return msgspec.json.encode(header) + b"\n"


def encode_record(channel: Channel, data: bytes) -> bytes:
    """Return a record as a line of a capture file, with its line break."""
    return msgspec.json.encode({channel: data.hex()}) + b"\n"
