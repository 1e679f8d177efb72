"""Capture files: recorded streams as JSON lines, `.jsonl` or `.jsonl.gz`.

The first line is the header: protocol version, options and what else is known of the recording. Every
other line holds one message in hex: `data`, a message of pgoutput as the SQL interface gives it;
`copydata`, what a walsender sent; or `sent`, what its client sent.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from pgoutput._stored_stream import Channel, Record, StoredStream
from pgoutput.errors import RecordingError
from pgoutput.messages import Streaming
from pgoutput.stream import StreamDecoder
from pgoutput.versions import CODECS, OPTIONS


class Header(msgspec.Struct, frozen=True):
    """The first line of a capture file; keys that are not listed here may stand there too."""

    proto_version: int
    options: dict[str, Any] = {}
    """The options of START_REPLICATION, or of the SQL function, apart from proto_version."""
    slot_two_phase: bool = False
    """Whether the slot sends prepared transactions, whatever the protocol version."""
    server_version: str = ""

    @property
    def streaming(self) -> Streaming:
        """The option `streaming`; `off` if it is not there."""
        value: Streaming = self.options.get("streaming", "off")
        return value

    def decoder(self) -> StreamDecoder:
        """A decoder for the stream that follows.

        Raises:
            ValueError: There is no such version, or it does not have this streaming.
        """
        return StreamDecoder(self.proto_version, streaming=self.streaming, two_phase=self.slot_two_phase)


class CaptureFile(StoredStream):
    """A capture file, opened; a context manager.

    Args:
        path: The file. Whether it is compressed is seen from its bytes, not from its name.
        content: The bytes of the file, where they are at hand already; `path` is then only its name.
        on_bad: Called with what cannot be read behind the header, which is then skipped; None raises it.

    Attributes:
        header: The first line.

    Raises:
        RecordingError: The file is not there, is empty, or does not begin with a header.
    """

    numbered_by = "line"

    def __init__(
        self,
        path: str | Path,
        *,
        content: bytes | None = None,
        on_bad: Callable[[RecordingError], None] | None = None,
    ) -> None:
        self.path = Path(path)
        super().__init__(None)  # the header must be right
        self._file = self._open(content)
        self._lines = self._read_lines()
        try:
            self.header = self._header()
            self.decoder = self.header.decoder()
        except ValueError as error:
            self.close()
            raise self._error(1, str(error)) from None
        except RecordingError:
            self.close()
            raise
        self._on_bad = on_bad

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._raw.close()  # a GzipFile leaves open what it was given

    def records(self) -> Iterator[Record]:
        """The lines behind the header.

        Raises:
            RecordingError: A line is not a JSON object with hex in one of the three channels, or the file
                ends in the middle.
        """
        for number, line in self._lines:
            if not line.strip():
                continue
            try:
                yield _record(number, line)
            except ValueError as error:
                self._bad(self._error(number, str(error)))

    @property
    def name(self) -> str:
        """The file's name without its suffixes."""
        return capture_name(self.path)

    def _open(self, content: bytes | None) -> BinaryIO:
        try:
            whole = None if content is None else cast(io.RawIOBase, io.BytesIO(content))
            self._raw = self.path.open("rb") if whole is None else io.BufferedReader(whole)
            compressed = self._raw.peek(2).startswith(b"\x1f\x8b")
        except OSError as error:  # not there, or a directory
            raise RecordingError(f"{self.path}: {error.strerror or error}") from None
        return cast(BinaryIO, gzip.open(self._raw)) if compressed else self._raw

    def _read_lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        try:
            for number, line in enumerate(self._file, start=1):
                yield number, line
        except (EOFError, zlib.error, OSError) as error:
            text = f"the file ends or breaks off here: {error}".rstrip(".")
            self._bad(self._error(number + 1, text))

    def _header(self) -> Header:
        _, line = next(self._lines, (1, b""))
        wanted = "the first line must be a JSON object with proto_version"
        if not line:
            raise self._error(1, f"no header, the file is empty: {wanted}")
        try:
            header = msgspec.json.decode(line, type=Header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(1, f"no header: {wanted} ({error})") from None
        if header.proto_version not in CODECS:
            known = ", ".join(map(str, CODECS))
            raise self._error(
                1, f"proto_version {header.proto_version} is not known; the versions are {known}"
            )
        if header.streaming not in list(OPTIONS["streaming"]):  # a list also takes what has no hash
            known = ", ".join(OPTIONS["streaming"])
            raise self._error(1, f"streaming is one of {known}, not {header.streaming!r}")
        return header

    def _error(self, number: int | None, text: str) -> RecordingError:
        return RecordingError(f"{self.path}:{number}: {text}")


def capture_name(path: str | Path) -> str:
    """The name of a capture file without folder and suffixes."""
    return Path(path).name.removesuffix(".gz").removesuffix(".jsonl")


class _Line(msgspec.Struct):
    data: str | None = None
    copydata: str | None = None
    sent: str | None = None


def _record(number: int, line: bytes) -> Record:
    try:
        found = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a JSON object with hex in data, copydata or sent ({error})") from None
    channels: tuple[Channel, ...] = ("data", "copydata", "sent")
    given = [(channel, text) for channel in channels if (text := getattr(found, channel)) is not None]
    if len(given) != 1:
        raise ValueError(f"one of data, copydata and sent is wanted, {len(given)} are there")
    channel, text = given[0]
    try:
        return Record(number, channel, bytes.fromhex(text))
    except ValueError:
        raise ValueError(f"{channel} is not hex") from None


def write_header(header: Header) -> bytes:
    """The first line of a capture file."""
    return msgspec.json.encode(header) + b"\n"


def write_record(channel: Channel, data: bytes) -> bytes:
    """A line behind it."""
    return msgspec.json.encode({channel: data.hex()}) + b"\n"
