"""The command `logicalrep encode`: converts JSON lines to messages, and prints them as a capture file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from logicalrep import _protocols, envelope
from logicalrep._stored_stream import Channel
from logicalrep.capturefile import Header, encode_header, encode_record
from logicalrep.errors import DecodeError, EncodeError, RecordingError
from logicalrep.jsonlines import from_json
from logicalrep.messages import Message, Streaming, XLogData
from logicalrep.stream import StreamDecoder, encode_for


def to_capture_file(file: Path, proto: int, streaming: Streaming) -> Iterator[bytes]:
    """Convert a file of JSON lines, one per message, to a capture file; yield the lines of the capture file.

    Each encoded message is decoded again, which ensures that the capture file can be decoded.

    Args:
        file: A file with a JSON object per message, as `logicalrep decode` prints; `-` is standard input.
        proto: Protocol version of the stream.
        streaming: Option `streaming` of the stream.

    Raises:
        RecordingError: The file cannot be read, a line is not a message, or a message is out of place in the
            stream.
    """
    header = Header(proto, {"streaming": streaming}, slot_two_phase=True)
    try:
        decoder = header.decoder()
    except ValueError as error:
        raise RecordingError(f"{file}: {error}") from None
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as lines:
            yield encode_header(header)
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _line(file, number, line, proto, decoder)
    except OSError as error:
        raise RecordingError(f"{file}: {error.strerror or error}") from None


def _line(file: Path, number: int, line: bytes, proto: int, decoder: StreamDecoder) -> bytes:
    try:
        return _record(msgspec.json.decode(line), proto, decoder)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"not JSON ({error})"
    except EncodeError as error:
        text = str(error)
    except DecodeError as error:
        text = f"the message cannot follow the messages before it: {error}; check --proto and --streaming"
    raise RecordingError(f"{file}:{number}: {text}")


_ENVELOPES = {message.name: message for message in _protocols.ENVELOPE.messages}
"""Layouts of the envelopes, by message name such as "XLogData"."""


def _record(data: Any, proto: int, decoder: StreamDecoder) -> bytes:
    inner = data.get("data") if isinstance(data, dict) else None
    nested = isinstance(inner, dict) and "type" in inner
    if nested:
        data = data | {"data": {"binary": encode_for(from_json(inner), proto).hex()}}
    message = from_json(data)
    layout = _ENVELOPES.get(type(message).__name__)
    raw = encode_for(message, proto) if layout is None else envelope.encode(message)
    _read_back(message, raw, decoder)
    channel: Channel = "data" if layout is None else "copydata" if layout.sender == "server" else "sent"
    return encode_record(channel, raw)


def _read_back(message: Message, raw: bytes, decoder: StreamDecoder) -> None:
    if isinstance(message, XLogData):
        decoder.decode(message.data)
    elif type(message).__name__ not in _ENVELOPES and decoder.decode(raw) != message:
        raise EncodeError(
            "wrong xid: expected the transaction ID for a message inside a stream block, and None outside",
            message=type(message).__name__,
            field="xid",
        )
