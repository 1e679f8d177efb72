"""Batches of messages of the streaming replication protocol (envelopes): XLogData and CopyData frames."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import compiled, envelope
from logicalrep._arrays import from_buffers
from logicalrep.columns.assembly import IntegerArray, Integers, join_parts
from logicalrep.columns.batch_encoder import encode_batch
from logicalrep.columns.cells import bytes_part
from logicalrep.messages import XLogData
from logicalrep.wire import Buffer

_LENGTH_BYTES: Final = 4
"""Size of the length field of a CopyData message, in bytes; the length includes the field itself."""


class XLogDataBatch(NamedTuple):
    """The XLogData of a batch of envelopes as columns, and the batch's other envelopes as objects."""

    lsns: pa.Array
    """`wal_start` of each XLogData as int64; LSNs of 2**63 and more are negative."""
    data: pa.BinaryArray
    """The pgoutput message in each XLogData."""
    others: list[tuple[int, envelope.Message]]
    """For each envelope other than XLogData, the number of XLogData received before it, and the envelope."""


def decode_xlog_data(payloads: Iterable[Buffer]) -> XLogDataBatch:
    """Decode envelopes that a walsender sent: XLogData to columns, all others to objects.

    Args:
        payloads: The payload of each CopyData message: any bytes-like object.

    Raises:
        DecodeError: A payload is not a message of the streaming replication protocol.
        OverflowError: The messages in the XLogData have more than 2 GB together.
        TypeError: A payload is not bytes-like.
    """
    split = _split if compiled.kernel is None else compiled.kernel.split_xlog_data
    return _batch(*split(payloads))


def decode_copy_data(data: Buffer) -> XLogDataBatch:
    """Decode the envelopes in CopyData messages, as received on the connection.

    Args:
        data: Whole CopyData messages, one after the other.

    Raises:
        DecodeError: A CopyData message does not contain a message of the streaming replication protocol.
        OverflowError: The messages in the XLogData have more than 2 GB together.
        ValueError: The data are not whole CopyData messages.
    """
    if compiled.kernel is None:
        return decode_xlog_data(_payloads(memoryview(data)))
    return _batch(*compiled.kernel.split_copy_data(data))


def _payloads(data: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        begin = at + 1 + _LENGTH_BYTES
        end = at + 1 + int.from_bytes(data[at + 1 : begin])
        if data[at] != ord("d") or not begin <= end <= len(data):
            raise ValueError(f"byte {at} is not the start of a whole CopyData message")
        yield bytes(data[begin:end])
        at = end


def _batch(lsns: Any, offsets: Any, data: Any, others: list[tuple[int, Buffer]]) -> XLogDataBatch:
    rows = memoryview(lsns).nbytes // 8
    return XLogDataBatch(
        from_buffers(pa.int64(), rows, lsns),
        from_buffers(pa.binary(), rows, offsets, data),
        [(before, envelope.decode(payload)) for before, payload in others],
    )


def _split(payloads: Iterable[Buffer]) -> tuple[Any, Any, bytes, list[tuple[int, Buffer]]]:
    """Split envelopes, as the kernel's function `split_xlog_data` does.

    Returns:
        LSNs of the XLogData, Arrow offsets and concatenated bytes of the messages in the XLogData; and for
        each other envelope the number of XLogData before it, and its bytes.
    """
    lsns, data, others = array("Q"), [], []
    for payload in payloads:
        message = envelope.decode(payload)
        if isinstance(message, XLogData):
            lsns.append(message.wal_start)
            data.append(message.data)
        else:
            others.append((len(lsns), payload))
    return lsns, array("i", accumulate(map(len, data), initial=0)), b"".join(data), others


def encode_xlog_data(lsns: pa.Array, send_times: IntegerArray, data: pa.BinaryArray) -> pa.BinaryArray:
    """Wrap each message in an XLogData (XLogSendLogical).

    Args:
        lsns: `wal_start` of each XLogData, also used as its `wal_end`.
        send_times: `send_time` of each XLogData, in microseconds since 2000-01-01 00:00 UTC.
        data: The messages, as binary.

    Raises:
        EncodeError: An integer does not fit into its field, a message is NULL, or the XLogData have more
            than 2 GB together.
        TypeError: `lsns` or `send_times` are not integers, or `data` is not binary.
        ValueError: The columns have different lengths.
    """
    return encode_batch(XLogData, wal_start=lsns, wal_end=lsns, send_time=send_times, data=data)


def encode_copy_data(data: pa.BinaryArray) -> pa.BinaryArray:
    """Wrap each envelope in a CopyData message, as sent on the connection.

    Raises:
        EncodeError: An envelope is NULL, or the CopyData messages have more than 2 GB together.
        TypeError: The data is not binary.
    """
    content = bytes_part(data, "data")
    lengths = np.asarray(pc.binary_length(content.array)).astype(np.int64)
    return join_parts([b"d", Integers(lengths + _LENGTH_BYTES, _LENGTH_BYTES), content], len(data))
