"""An index of the keys in a data file: finds rows by key without reading the key columns of the whole file.

The index of a data file is a file of its own: the hashes of all keys, sorted, and the row number of each key.
Data files never change, so an index is never out of date. An index is a cache: if it is missing, damaged, or
for another key, it is built from the data file. An index has 12 bytes for each row.

The indexes of a local table are in its folder. For a table in an object store, they are in a local cache
folder.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import Numbers, byte_values, raw_buffers, value_bytes, value_offsets
from logicalrep.apply.data_files import DataFiles
from logicalrep.targets import DataFile

Hashes: TypeAlias = npt.NDArray[np.uint64]

MIN_ROWS: Final = 50_000
"""Number of rows from which a data file gets an index. Reading the keys of a smaller file takes less time."""

_FOLDER: Final = "_logicalrep_index"
_MARK: Final = "@"
"""Separator in the name of an index: between the name of its data file and a digest of the key columns."""
_BLOCK: Final = 512
"""Number of keys in a block. An index consists of blocks, of which a search reads only those it needs."""
_NO_ROW: Final = np.uint32(0xFFFFFFFF)
"""Row number in the unused items of the last block."""
_HEADER: Final = struct.Struct("<16sQQQQ")
"""Magic bytes, checksum of the data before the blocks, data file size, number of blocks and of NULL keys."""
_MAGIC: Final = b"logicalrep idx 1"


class Found(NamedTuple):
    """Rows of a data file that may have one of the keys to find."""

    rows: Numbers
    """Row numbers, in ascending order."""
    keys: Numbers
    """For each row, the index of a key with the same hash; -1 if the row has NULL in a key column."""


class Keys:
    """Keys to find in data files.

    Args:
        names: Names of the key columns, at least one.
        columns: The values of each key column, in the type of the table.
    """

    def __init__(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        self._names = list(names)
        known = np.flatnonzero(_are_valid(columns))
        columns = [column.take(pa.array(known)) for column in columns]
        hashes = hash_keys(columns)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order], known[order]
        self.are_exact: bool = len(columns) == 1 and _is_word(columns[0].type)
        """Whether a row that is found by hash certainly has the key, because no other key has this hash."""
        has_range = len(columns) == 1 and pa.types.is_integer(columns[0].type)
        self._values = np.asarray(columns[0])[order] if has_range else None

    def find(self, files: DataFiles, file: DataFile) -> Found | None:
        """Return the rows of a data file that may have one of the keys; None if no index can be used.

        A small data file has no index. A missing or damaged index is built first.
        """
        if file.rows < MIN_ROWS:
            return None
        hashes, numbers = self._hashes, self._numbers
        name = self._names[0]
        if self._values is not None and name in file.min_values and name in file.max_values:
            at = (self._values >= file.min_values[name]) & (self._values <= file.max_values[name])
            hashes, numbers = hashes[at], numbers[at]
        path = _index_path(files, file, self._names)
        try:
            found = _search(path, file, hashes)
            if found is None:  # there is no index, or it is damaged
                _write_index(path, files, file, self._names)
                found = _search(path, file, hashes)
        except OSError:  # the folder cannot be written, or the disk is full
            return None
        if found is None:
            return None
        rows, keys, unknown = found
        rows = np.concatenate((rows, unknown))
        keys = np.concatenate((numbers[keys], np.full(len(unknown), -1, np.int64)))
        rows, first = np.unique(rows, return_index=True)
        return Found(rows, keys[first])


def hash_keys(columns: Sequence[pa.Array]) -> Hashes:
    """Return the hash of each key. Equal keys have equal hashes; different integers have different hashes."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        for words, used in _words(column):
            hashes = np.where(used, _mix(hashes ^ words), hashes)
    return hashes


def _are_valid(columns: Iterable[pa.Array]) -> npt.NDArray[np.bool_]:
    """Return for each key whether none of its columns is NULL."""
    valid: npt.NDArray[np.bool_] = np.logical_and.reduce([np.asarray(one.is_valid()) for one in columns])
    return valid


def _is_word(type_: pa.DataType) -> bool:
    """Return whether Arrow stores the values of a type as integers of at most 64 bits."""
    return bool(pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_))


def _words(column: pa.Array) -> Iterator[tuple[Hashes, npt.NDArray[np.bool_]]]:
    """Yield the bytes of values as 64-bit words, with masks: all first words, then all second words.

    The mask is False for values that are too short to have this word. The last word of a string or binary
    value is its length. No value may be NULL.
    """
    every = np.ones(len(column), np.bool_)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        offsets = value_offsets(column).astype(np.int64)
        starts, sizes = offsets[:-1], np.diff(offsets)
        data = np.concatenate((value_bytes(column), np.zeros(8, np.uint8)))
        at_offset = np.ndarray(len(data) - 7, np.uint64, data, strides=(1,))
        for first in range(0, int(sizes.max(initial=0)), 8):
            left = sizes - first
            used = left > 0
            cut = (8 * np.clip(8 - left, 0, 7)).astype(np.uint64)  # drop bytes of the next values
            yield at_offset[np.where(used, starts + first, 0)] << cut, used
        yield sizes.astype(np.uint64), every
        return
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    width = column.type.bit_width // 8
    first, (_, buffer) = raw_buffers(column)
    values = byte_values(buffer)[first * width :][: len(column) * width]
    if width < 8:  # narrower numbers are extended to 64 bits
        yield values.view(f"i{width}").astype(np.int64).view(np.uint64), every
        return
    for word in values.view(np.uint64).reshape(len(column), width // 8).T:
        yield word, every


def _mix(words: Hashes) -> Hashes:
    """Mix the bits of each word; different words stay different (the finalizer of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _index_path(files: DataFiles, file: DataFile, names: Sequence[str]) -> Path:
    """Return the path of the index of a data file, which depends on the key columns and their types.

    Names are not enough: after renames, a column with the name of a key may be another column of the file.
    """
    if files.place.is_local:
        folder = Path(files.place.path, _FOLDER)
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(cache, "logicalrep", hashlib.sha256(files.place.place.encode()).hexdigest()[:32])
    types = [f"{files.column_id(name)} {files.schema.field(name).type}" for name in names]
    return folder / _index_name(file, hashlib.sha256("\n".join(types).encode()).hexdigest()[:16])


def _index_name(file: DataFile, key: str) -> str:
    return f"{file.path.replace('/', '_')}{_MARK}{key}"


def _write_index(path: Path, files: DataFiles, file: DataFile, names: Sequence[str]) -> None:
    """Write the index of a data file; remove the indexes of data files that the table does not have any more.

    Hashes and row numbers are stored in blocks. Before the blocks are the first hash and the checksum of each
    block, and the numbers of rows with NULL in a key column, so that a search reads only the blocks it needs.
    """
    hashes, valid = [np.zeros(0, np.uint64)], [np.zeros(0, np.bool_)]
    for batch in files.read_all(file, names):
        columns = [batch[name] for name in names]
        valid.append(_are_valid(columns))
        hashes.append(hash_keys([column.filter(pa.array(valid[-1])) for column in columns]))
    is_known, keys = np.concatenate(valid), np.concatenate(hashes)
    order = np.argsort(keys)
    count = -(-len(keys) // _BLOCK)
    blocks = np.full((count, _BLOCK), np.iinfo(np.uint64).max)
    numbers = np.full((count, _BLOCK), _NO_ROW)
    blocks.ravel()[: len(keys)] = keys[order]
    numbers.ravel()[: len(keys)] = np.flatnonzero(is_known).astype(np.uint32)[order]
    unknown = np.flatnonzero(~is_known).astype(np.uint64)
    head = np.concatenate((blocks[:, 0], _checksums(blocks, numbers), unknown))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid4()}.part")
    with part.open("wb") as index:
        index.write(_HEADER.pack(_MAGIC, int(_checksums(head[None])[0]), file.size, count, len(unknown)))
        for array in (head, blocks, numbers):
            index.write(array.tobytes())
    part.rename(path)
    kept = {_index_name(one, "") for one in files}
    for other in path.parent.iterdir():
        if other.name[: other.name.find(_MARK) + len(_MARK)] not in kept:
            other.unlink(missing_ok=True)


def _search(path: Path, file: DataFile, hashes: Hashes) -> tuple[Numbers, Numbers, Numbers] | None:
    """Search the index of a data file for hashes of keys.

    Args:
        path: Path of the index.
        file: The data file.
        hashes: The hashes to find, sorted.

    Returns:
        The numbers of the rows with one of the hashes, for each of these rows the index of its hash in
        `hashes`, and the numbers of the rows with NULL in a key column. None if the index is missing,
        damaged, or of another file.
    """
    try:
        content = np.memmap(path, np.uint8, "r")
    except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
        return None
    if len(content) < _HEADER.size:
        return None
    magic, checksum, size, count, others = _HEADER.unpack(content[: _HEADER.size].tobytes())
    sizes = _HEADER.size, 8 * (2 * count + others), 8 * _BLOCK * count, 4 * _BLOCK * count
    if (magic, size, sum(sizes)) != (_MAGIC, file.size, len(content)):
        return None
    _, head, blocks, numbers = np.split(content, np.cumsum(sizes)[:-1])
    head = head.view(np.uint64)
    if _checksums(head[None])[0] != checksum:
        return None
    first, sums, unknown = np.split(head, [count, 2 * count])
    used = _used_blocks(first, hashes)
    blocks = blocks.view(np.uint64).reshape(count, _BLOCK)[used]
    numbers = numbers.view(np.uint32).reshape(count, _BLOCK)[used]
    if not np.array_equal(_checksums(blocks, numbers), sums[used]):
        return None
    begin, end = (np.searchsorted(blocks.ravel(), hashes, side) for side in ("left", "right"))
    counts = end - begin
    keys = np.repeat(np.arange(len(hashes)), counts)
    rows = numbers.ravel()[np.arange(len(keys)) + np.repeat(begin - np.cumsum(counts) + counts, counts)]
    is_row = rows != _NO_ROW
    return rows[is_row].astype(np.int64), keys[is_row], unknown.astype(np.int64)


def _used_blocks(first: Hashes, hashes: Hashes) -> Numbers:
    """Return the indices of the blocks that may contain one of `hashes`; `first` has each block's first hash.

    The same hash may be at the end of a block and at the beginning of the next blocks.
    """
    begin = np.maximum(np.searchsorted(first, hashes, "left") - 1, 0)
    end = np.searchsorted(first, hashes, "right")
    steps = np.zeros(len(first) + 1, np.int64)
    np.add.at(steps, begin[end > begin], 1)
    np.add.at(steps, end[end > begin], -1)
    return np.flatnonzero(np.cumsum(steps)[:-1])


def _checksums(*arrays: npt.NDArray[np.unsignedinteger]) -> Hashes:
    """Return a checksum of each row of the arrays: a weighted sum of the row's integers in all arrays."""
    sums = np.zeros(len(arrays[0]), np.uint64)
    for words in arrays:
        sums += words.astype(np.uint64) @ (2 * np.arange(words.shape[1], dtype=np.uint64) + 1)
    return sums
