"""An index of the keys in a data file: finds rows by key in time in proportion to the keys.

The index of a data file is a file of its own: the hashes of all keys, sorted, and the row number of each.
Data files never change, so an index is never out of date. It is a cache: it is made from the data file when
it is missing, damaged, or of another key. It has 12 bytes for each row.

The indexes of a local table are in its folder, those of a table in an object store in a local cache folder.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput._arrays import Numbers, byte_values, value_bytes, value_offsets
from pgoutput.apply.data_files import DataFiles
from pgoutput.recording import Location
from pgoutput.targets import DataFile

Hashes: TypeAlias = npt.NDArray[np.uint64]

MIN_ROWS: Final = 50_000
"""Number of rows from which a data file gets an index; the keys of a smaller file are read in less time."""

_FOLDER: Final = "_pgoutput_index"
_MARK: Final = "@"
"""What follows the name of the data file in the name of its index."""
_HEADER: Final = struct.Struct("<16sQQQQ")
"""Magic bytes, checksum of the rest, size of the data file, number of keys, number of rows without a key."""
_MAGIC: Final = b"pgoutput index 1"


class Found(NamedTuple):
    """Rows of a data file that may have one of some keys."""

    rows: Numbers
    """Numbers of the rows, which ascend."""
    keys: Numbers
    """For each row, the index of a key with the same hash; -1 if some part of the row's key is NULL."""


class Keys:
    """Keys to find in data files.

    Args:
        names: Names of the key columns, at least one.
        columns: The values of each key column, in the type of the table.
    """

    def __init__(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        self._names = list(names)
        known = np.flatnonzero(_are_valid(columns))
        hashes = hash_keys([column.take(pa.array(known)) for column in columns])
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order], known[order]
        self.are_exact: bool = len(columns) == 1 and _is_word(columns[0].type)
        """Whether each found row has the key, because different keys have different hashes."""

    def find(self, files: DataFiles, file: DataFile) -> Found | None:
        """Return the rows of a data file that may have one of the keys; None if it has no index."""
        if file.rows < MIN_ROWS or (index := _open_index(files, file, self._names)) is None:
            return None
        first, end = (np.searchsorted(index.hashes, self._hashes, side) for side in ("left", "right"))
        matches = np.flatnonzero(end > first)
        counts = (end - first)[matches]
        # Several rows have one hash if row versions have ended, or rows were updated.
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = index.numbers[np.repeat(first[matches], counts) + within]
        rows = np.concatenate((rows, index.unknown)).astype(np.int64)
        keys = np.concatenate(
            (np.repeat(self._numbers[matches], counts), np.full(len(index.unknown), -1, np.int64))
        )
        order = np.argsort(rows, kind="stable")
        rows, keys = rows[order], keys[order]
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = rows[1:] != rows[:-1]
        return Found(rows[is_first], keys[is_first])


class _Index(NamedTuple):
    hashes: Hashes
    """The hashes of all known keys, sorted."""
    numbers: npt.NDArray[np.uint32]
    """The row number of each key."""
    unknown: npt.NDArray[np.uint32]
    """Numbers of the rows that have NULL in a key column."""


def hash_keys(columns: Sequence[pa.Array]) -> Hashes:
    """Return the hash of each key. Equal keys have equal hashes; hashes of one integer column are unique."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        for words, used in _words(column):
            hashes = np.where(used, _mix(hashes ^ words), hashes)
    return hashes


def _are_valid(columns: Iterable[pa.Array]) -> npt.NDArray[np.bool_]:
    """Return for each key whether all its columns have a value."""
    valid: npt.NDArray[np.bool_] = np.logical_and.reduce([np.asarray(one.is_valid()) for one in columns])
    return valid


def _is_word(type_: pa.DataType) -> bool:
    """Return whether the values of a type are integers of at most 64 bits."""
    return bool(pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_))


def _words(column: pa.Array) -> Iterator[tuple[Hashes, npt.NDArray[np.bool_]]]:
    """Yield the values of a column, none of which is NULL, as words, and which values have a word there."""
    every = np.ones(len(column), np.bool_)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        offsets = value_offsets(column).astype(np.int64)
        starts, sizes = offsets[:-1], np.diff(offsets)
        data = np.concatenate((value_bytes(column), np.zeros(8, np.uint8)))
        at_offset = np.ndarray(len(data) - 7, np.uint64, data, strides=(1,))
        for first in range(0, int(sizes.max(initial=0)), 8):
            left = sizes - first
            used = left > 0
            cut = (8 * np.clip(8 - left, 0, 7)).astype(np.uint64)  # bytes of the next values
            yield at_offset[np.where(used, starts + first, 0)] << cut, used
        yield sizes.astype(np.uint64), every
        return
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    width = column.type.bit_width // 8
    values = byte_values(column.buffers()[1])[column.offset * width :][: len(column) * width]
    if width < 8:  # numbers of the width are extended to 64 bits
        yield values.view(f"i{width}").astype(np.int64).view(np.uint64), every
        return
    for word in values.view(np.uint64).reshape(len(column), -1).T:
        yield word, every


def _mix(words: Hashes) -> Hashes:
    """Return the words mixed, each to another (the finalizer of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _open_index(files: DataFiles, file: DataFile, names: Sequence[str]) -> _Index | None:
    """Return the index of a data file, which is made if there is none; None if it cannot be written."""
    folder = _index_folder(files.place)
    types = [f"{name} {files.schema.field(name).type}" for name in names]
    key = hashlib.sha256("\n".join(types).encode()).hexdigest()[:16]
    path = folder / _index_name(file, key)
    try:
        if (found := _read_index(path, file)) is not None:
            return found
        folder.mkdir(parents=True, exist_ok=True)
        _remove_others(folder, files)
        part = path.with_name(f"{path.name}.{uuid4()}.part")
        part.write_bytes(b"".join(_make_index(files, file, names)))
        part.rename(path)
        return _read_index(path, file)
    except OSError:  # the folder cannot be written, or the disk is full
        return None


def _index_folder(place: Location) -> Path:
    if place.is_local:
        return Path(place.path, _FOLDER)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "pgoutput", hashlib.sha256(place.place.encode()).hexdigest()[:32])


def _remove_others(folder: Path, files: DataFiles) -> None:
    """Remove the indexes of data files that the table does not have any more."""
    kept = {_index_name(file, "") for file in files}
    for path in folder.iterdir():
        if path.name[: path.name.find(_MARK) + len(_MARK)] not in kept:
            path.unlink(missing_ok=True)


def _index_name(file: DataFile, key: str) -> str:
    return f"{file.path.replace('/', '_')}{_MARK}{key}"


def _make_index(files: DataFiles, file: DataFile, names: Sequence[str]) -> Iterator[bytes]:
    """Yield the parts of the index of a data file."""
    hashes, valid = [np.zeros(0, np.uint64)], [np.zeros(0, np.bool_)]
    for batch in files.read_all(file, names):
        columns = [batch[name] for name in names]
        valid.append(_are_valid(columns))
        hashes.append(hash_keys([column.filter(pa.array(valid[-1])) for column in columns]))
    is_known = np.concatenate(valid)
    known, unknown = (np.flatnonzero(one).astype(np.uint32) for one in (is_known, ~is_known))
    keys = np.concatenate(hashes)
    order = np.argsort(keys)
    content = keys[order].tobytes() + known[order].tobytes() + unknown.tobytes()
    yield _HEADER.pack(_MAGIC, _checksum(content), file.size, len(known), len(unknown))
    yield content


def _read_index(path: Path, file: DataFile) -> _Index | None:
    """Return an index; None if there is none, or if it is damaged or that of another data file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    if stat.st_size < _HEADER.size:
        return None
    data = np.memmap(path, np.uint8, "r")
    magic, checksum, size, known, unknown = _HEADER.unpack(data[: _HEADER.size].tobytes())
    expected = _HEADER.size + 12 * known + 4 * unknown
    if (magic, size, expected) != (_MAGIC, file.size, stat.st_size):
        return None
    if _stored_checksum(path, stat.st_mtime_ns, stat.st_size) != checksum:
        return None
    content = data[_HEADER.size :]
    hashes, numbers, others = np.split(content, [8 * known, 12 * known])
    return _Index(hashes.view(np.uint64), numbers.view(np.uint32), others.view(np.uint32))


@lru_cache(1 << 16)
def _stored_checksum(path: Path, changed: int, size: int) -> int:
    """Return the checksum of an index, which is read once in a process as long as the file is the same."""
    return _checksum(np.memmap(path, np.uint8, "r", _HEADER.size) if size > _HEADER.size else b"")


def _checksum(content: bytes | npt.NDArray[np.uint8]) -> int:
    """Return the sum of all words of 32 bits, each of which is multiplied by the number of its block."""
    words = np.frombuffer(content, np.uint32)
    blocks = np.add.reduceat(words, np.arange(0, len(words), 1024), dtype=np.uint64) if len(words) else words
    return int(np.dot(blocks, np.arange(1, len(blocks) + 1, dtype=np.uint64)) if len(words) else 0)
