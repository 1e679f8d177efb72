"""The command `logicalrep inspect`: prints messages as annotated hex dumps."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from logicalrep import _protocols, envelope
from logicalrep._stored_stream import Record, StoredStream
from logicalrep._text import counted
from logicalrep._walk import Piece, walk
from logicalrep.errors import DecodeError
from logicalrep.messages import XLogData
from logicalrep.wire import UNCHANGED, format_lsn, format_time

_LINE_BYTES = 8
"""Number of bytes on a line of the hex dump."""

_PATH_WIDTH = 24
"""Width of the hex dump's column for field paths, in characters; a longer path is not cut."""


def show(console: Console, stream: StoredStream, record: Record) -> None:
    """Print a stored message as an annotated hex dump; the fields of its envelope, if stored, come first.

    If a message cannot be decoded, the bytes after the last valid field have no annotation.

    Raises:
        RecordingError: The message cannot be decoded, and `stream` was not opened to skip bad messages.
    """
    place = "keyframe" if record.number is None else f"{stream.numbered_by} {record.number}"
    console.print(Text(f"{place}, {record.channel}, {counted(len(record.data), 'byte')}", style="bold"))
    end = 0
    try:
        for start, piece in _pieces(stream, record):
            for line in _lines(record.data, start, piece):
                console.print(line)
            end = start + piece.end
    except DecodeError as error:
        for rest in _dump(record.data, end, len(record.data)):
            console.print(Text(rest, style="red"))
        console.print(Text(f"  {error}", style="bold red"))
        stream.report_error(record, error)
    console.print()


def _pieces(stream: StoredStream, record: Record) -> Iterator[tuple[int, Piece]]:
    """Yield the fields of a record's envelope and message, as pairs of an offset and a `Piece`.

    The offset is where the envelope or message begins in `record.data`. Positions in the `Piece` are relative
    to this offset.
    """
    data = record.data
    if record.channel != "data":
        yield from (
            (0, piece) for piece in walk(_protocols.ENVELOPE, data, False, "off") if piece.path != "data"
        )
        outer = envelope.decode(data)
        if not isinstance(outer, XLogData):
            return
        data = outer.data
    start = len(record.data) - len(data)
    yield from ((start, piece) for piece in stream.decoder.walk(data))
    stream.decoder.decode(data)


def _lines(data: bytes, start: int, piece: Piece) -> Iterator[Text]:
    dump = _dump(data, start + piece.start, start + piece.end)
    first = Text(next(dump, ""), style="dim")
    first.append(f"{piece.path:{_PATH_WIDTH}}  ", style="bold cyan")
    first.append(f"{_value(piece)}  ", style="green")
    first.append(f"{piece.notation}  ", style="yellow")
    first.append(piece.doc, style="dim")
    yield first
    for line in dump:
        yield Text(line, style="dim")


def _dump(data: bytes, start: int, end: int) -> Iterator[str]:
    """Yield the hex dump of `data[start:end]` as lines; an empty range gives one line without hex digits."""
    width = 3 * _LINE_BYTES
    for pos in range(start, max(end, start + 1), _LINE_BYTES):
        yield f"  {pos:06x}  {data[pos : min(pos + _LINE_BYTES, end)].hex(' '):{width}} "


def _value(piece: Piece) -> str:
    value = piece.value
    if value is None:
        return "NULL"
    if value is UNCHANGED:
        return "unchanged"
    if piece.type == "lsn":
        return format_lsn(value)
    if piece.type == "timestamp":
        return format_time(value, precision="auto")
    if isinstance(value, bytes):
        return counted(len(value), "byte")
    return ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
