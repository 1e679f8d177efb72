"""Deletion vectors: the row numbers of deleted rows, which a data file still contains.

Sections of the Delta protocol: "Deletion Vectors", and "Deletion Vector Format" of its appendix.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final
from uuid import UUID
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from logicalrep._arrays import Numbers

_DIGITS: Final = np.frombuffer(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#", np.uint8
)
"""The digits of Z85, the encoding of deletion vectors in the log (https://rfc.zeromq.org/spec/32)."""
_VALUES: Final = np.zeros(256, np.int64)
_VALUES[_DIGITS] = np.arange(len(_DIGITS))
_POWERS: Final = 85 ** np.arange(4, -1, -1)

_HEADER: Final = struct.Struct("<iqi")
"""Magic number, number of bitmaps, upper 32 bits of the first bitmap's row numbers ("RoaringBitmapArray")."""
_MAGIC: Final = 1681511377
_UUID_DIGITS: Final = 20


class Vector(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A deletion vector of a data file ("Deletion Vector Descriptor Schema")."""

    storage_type: str
    """Where the vector is stored: `i` in the log, `u` (path by UUID) or `p` (absolute path) in a file."""
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    """Number of rows that the vector marks."""
    offset: int | None = None
    """Offset in bytes at which the vector begins in its file; None if it is in the log."""

    @property
    def path(self) -> str:
        """Path of the vector's file, relative to the table's folder, or URI; empty if it is in the log."""
        if self.storage_type != "u":
            return self.path_or_inline_dv if self.storage_type == "p" else ""
        folder, digits = self.path_or_inline_dv[:-_UUID_DIGITS], self.path_or_inline_dv[-_UUID_DIGITS:]
        return f"{folder}/deletion_vector_{UUID(bytes=_from_z85(digits))}.bin".lstrip("/")


def encode_vector(rows: Numbers) -> Vector:
    """Return a deletion vector, to be stored in the log, that marks the given row numbers (from 0)."""
    bitmap = BitMap(rows.astype(np.uint32))
    bitmap.run_optimize()
    data = _HEADER.pack(_MAGIC, 1, 0) + bitmap.serialize()
    return Vector("i", _to_z85(data), len(data), len(bitmap))


def decode_vector(vector: Vector, read: Callable[[str, int, int], bytes]) -> Numbers:
    """Return the row numbers that a deletion vector marks, in ascending order.

    Args:
        vector: The vector.
        read: Called with path, offset and size in bytes; returns these bytes of the vector's file.

    Raises:
        ValueError: The vector is damaged, or marks rows that no data file has.
    """
    if vector.storage_type == "i":
        data = _from_z85(vector.path_or_inline_dv)[: vector.size_in_bytes]
    else:
        framed = read(vector.path, vector.offset or 1, vector.size_in_bytes + 8)
        data = framed[4:-4]
        if framed[:4] + framed[-4:] != struct.pack(">iI", vector.size_in_bytes, crc32(data)):
            raise ValueError(
                f"the deletion vector in {vector.path} is damaged: wrong size or checksum. Restore the file"
            )
    is_known = len(data) > _HEADER.size and _HEADER.unpack_from(data) == (_MAGIC, 1, 0)
    if not is_known and data != _HEADER.pack(_MAGIC, 0, 0)[: len(data)]:
        raise ValueError(
            f"expected a deletion vector with one RoaringBitmap, found {data[: _HEADER.size].hex()}. "
            "Build the table anew (`logicalrep replicate --reset-table`)"
        )
    rows = BitMap.deserialize(data[_HEADER.size :]).to_array() if is_known else []
    if len(rows) != vector.cardinality:
        raise ValueError(
            f"the deletion vector in {vector.path or 'the log'} is damaged: it marks {len(rows)} rows, but "
            f"the log says {vector.cardinality}. Restore the file, or build the table anew "
            "(`logicalrep replicate --reset-table`)"
        )
    return np.asarray(rows, np.int64)


def is_absolute(path: str) -> bool:
    """Return whether the path of a vector's file is an absolute path or URI."""
    return path.startswith("/") or "://" in path


def _to_z85(data: bytes) -> str:
    """Encode bytes in Z85; zero bytes are appended up to a multiple of four."""
    words = np.frombuffer(data + bytes(-len(data) % 4), ">u4").astype(np.int64)
    return bytes(_DIGITS[words[:, None] // _POWERS % 85]).decode()


def _from_z85(text: str) -> bytes:
    digits: npt.NDArray[np.int64] = _VALUES[np.frombuffer(text.encode(), np.uint8)]
    return (digits.reshape(-1, 5) @ _POWERS).astype(">u4").tobytes()
