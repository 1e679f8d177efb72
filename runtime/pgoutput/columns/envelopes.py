"""What a walsender puts around messages, many at once."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput import messages
from pgoutput.columns.cells import Bytes

Numbers: TypeAlias = npt.NDArray[Any]

_XLOG_DATA: Final = np.dtype([("tag", "u1"), ("wal_start", ">u8"), ("wal_end", ">u8"), ("send_time", ">i8")])
_COPY_DATA: Final = np.dtype([("type", "u1"), ("length", ">i4")])


def encode_xlog_data(lsns: pa.Array, send_times: Numbers, data: pa.BinaryArray) -> pa.BinaryArray:
    """The XLogData around each message (XLogSendLogical).

    Args:
        lsns: Its start, and its end.
        send_times: Microseconds since 2000.
        data: The messages.
    """
    heads = np.empty(len(data), _XLOG_DATA)
    heads["tag"] = ord(messages.XLogData.wire_tag)
    heads["wal_start"] = heads["wal_end"] = np.asarray(lsns)
    heads["send_time"] = send_times
    return _behind(heads, data)


def encode_copy_data(data: pa.BinaryArray) -> pa.BinaryArray:
    """The frame around each message of the replication protocol, as it stands on the connection."""
    heads = np.empty(len(data), _COPY_DATA)
    heads["type"] = ord("d")
    heads["length"] = np.asarray(pc.binary_length(data)) + heads.dtype["length"].itemsize
    return _behind(heads, data)


def _behind(heads: Numbers, data: pa.BinaryArray) -> pa.BinaryArray:
    first = Bytes.fixed(heads.view(np.uint8).reshape(len(data), heads.itemsize)).array
    return pc.binary_join_element_wise(first, data, pa.scalar(b"", pa.binary()))
