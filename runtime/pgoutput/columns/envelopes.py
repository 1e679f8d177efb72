"""What a walsender puts around messages, many at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput import compiled, envelope
from pgoutput.columns.batch import encode_batch
from pgoutput.columns.cells import strings
from pgoutput.columns.parts import Integers, Numbers, join
from pgoutput.messages import XLogData
from pgoutput.wire import Buffer

_LENGTH: Final = 4
"""Bytes of a frame's length, which counts itself."""


class Received(NamedTuple):
    """What a walsender has sent."""

    lsns: pa.Array
    """`wal_start` of each XLogData, int64: those of 2**63 and more as negative numbers."""
    data: pa.BinaryArray
    """The messages in them."""
    others: list[tuple[int, envelope.Message]]
    """Messages that are no XLogData, each with the number of those that came before it."""


def decode_xlog_data(payloads: Iterable[Buffer]) -> Received:
    """Take apart what a walsender has sent.

    Args:
        payloads: What stood in each CopyData: any bytes-like object.

    Raises:
        DecodeError: One is not a message of the streaming replication protocol.
        OverflowError: The messages have more than 2 GB.
        TypeError: One is not bytes-like.
    """
    split = _split if compiled.kernel is None else compiled.kernel.split_xlog_data
    *buffers, others = split(payloads)
    lsns, offsets, data = map(pa.py_buffer, buffers)
    rows = lsns.size // 8
    return Received(
        pa.Array.from_buffers(pa.int64(), rows, [None, lsns]),
        pa.Array.from_buffers(pa.binary(), rows, [None, offsets, data]),
        [(before, envelope.decode(payload)) for before, payload in others],
    )


def _split(payloads: Iterable[Buffer]) -> tuple[Any, Any, bytes, list[tuple[int, Buffer]]]:
    """The LSNs of XLogData, and the offsets and the bytes of the messages, as buffers; the other payloads."""
    lsns, data, others = array("Q"), [], []
    for payload in payloads:
        message = envelope.decode(payload)
        if isinstance(message, XLogData):
            lsns.append(message.wal_start)
            data.append(message.data)
        else:
            others.append((len(lsns), payload))
    return lsns, array("i", accumulate(map(len, data), initial=0)), b"".join(data), others


def encode_xlog_data(lsns: pa.Array, send_times: Numbers, data: pa.BinaryArray) -> pa.BinaryArray:
    """The XLogData around each message (XLogSendLogical).

    Args:
        lsns: Its start, and its end.
        send_times: Microseconds since 2000.
        data: The messages.

    Raises:
        EncodeError: A number does not fit, a message is NULL, or all together have more than 2 GB.
        TypeError: A column is of another type.
        ValueError: Columns differ in length.
    """
    return encode_batch(XLogData, wal_start=lsns, wal_end=lsns, send_time=send_times, data=data)


def encode_copy_data(data: pa.BinaryArray) -> pa.BinaryArray:
    """The frame around each message of the replication protocol, as it stands on the connection.

    Raises:
        EncodeError: A message is NULL, or all together have more than 2 GB.
        TypeError: They are not binary.
    """
    content = strings(data, "data")
    lengths = np.asarray(pc.binary_length(content.array)).astype(np.int64)
    return join([b"d", Integers(lengths + _LENGTH, _LENGTH), content], len(data))
