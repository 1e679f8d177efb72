"""What a walsender puts around messages, many at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.columns.batch import encode_batch
from pgoutput.columns.cells import strings
from pgoutput.columns.parts import Integers, Numbers, join
from pgoutput.messages import XLogData

_LENGTH: Final = 4
"""Bytes of a frame's length, which counts itself."""


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
