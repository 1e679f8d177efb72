"""Lower bound for the time of the column decoders: a C function that walks messages and copies their cells.

The function (`c_baseline.c`) is compiled at run time with the machine's C compiler. It reads the same Arrow
buffers as the column decoders, in the same process.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.streams import Batch, Row
from benchmarks.timing import Implementation, Run, timed

SOURCE: Final = Path(__file__).with_name("c_baseline.c")
COMPILER: Final = "cc"
FLAGS: Final = ("-O3", "-shared", "-fPIC")


def compiled() -> ctypes.CDLL | None:
    """Compile `c_baseline.c`; return the shared library, or None if there is no C compiler."""
    if shutil.which(COMPILER) is None:
        return None
    with tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder:
        path = Path(folder, "c_baseline.so")
        subprocess.run([COMPILER, *FLAGS, "-o", str(path), str(SOURCE)], check=True)
        library = ctypes.CDLL(str(path))
    library.walk.restype = ctypes.c_int64
    return library


def implementation(library: ctypes.CDLL, columns: int) -> Implementation:
    """Return the C function as a benchmark implementation for messages with `columns` columns."""
    walk = Walk(library, columns)
    return Implementation("C", lambda batch: timed(walk.call(batch)), walk.result)


class Walk:
    """Caller of the C function `walk`, with output buffers that are reused for all batches."""

    def __init__(self, library: ctypes.CDLL, columns: int) -> None:
        self._walk, self._columns, self._capacity = library.walk, columns, (0, 0)

    def call(self, batch: Batch) -> Run:
        """Return a function that reads the batch with `walk` and returns the number of tuples read."""
        self._grow_buffers(batch.data.nbytes, 2 * len(batch.data))
        _, offsets, data = batch.data.buffers()
        input_ = (
            ctypes.c_void_p(data.address),
            ctypes.c_void_p(offsets.address + 4 * batch.data.offset),
            ctypes.c_int64(len(batch.data)),
            ctypes.c_int(self._columns),
        )

        def walk() -> int:
            rows: int = self._walk(*input_, *self._output)
            if rows < 0:
                raise ValueError("malformed message, or wrong number of columns")
            return rows

        return walk

    def result(self, batch: Batch) -> list[Row]:
        """Return for each tuple of a batch the cells that the C function copies."""
        rows = int(self.call(batch)())
        type_ = pa.string() if batch.shape.format == "text" else pa.binary()
        columns = []
        for out, ends in zip(self._out, self._ends, strict=True):
            offsets = np.concatenate((np.zeros(1, np.int32), ends[:rows]))
            cells = pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(offsets), pa.py_buffer(out)])
            # The streams have no empty values, so an empty cell is NULL.
            columns.append([cell or None for cell in cells.to_pylist()])
        return list(zip(*columns, strict=True))

    def _grow_buffers(self, size: int, rows: int) -> None:
        """Allocate output buffers for `size` bytes and `rows` tuples, unless the old ones suffice."""
        if self._capacity >= (size, rows):
            return
        self._capacity = size, rows
        room = min(size, 8 * size // self._columns)  # no column has more than 8 times its share
        self._out = [np.ones(room, np.uint8) for _ in range(self._columns)]  # np.ones maps all pages
        self._ends = [np.ones(rows, np.int32) for _ in range(self._columns)]
        self._used = np.zeros(self._columns, np.int32)
        self._output = (
            _addresses(self._out),
            _addresses(self._ends),
            ctypes.c_void_p(self._used.ctypes.data),
            ctypes.c_int32(room),
            ctypes.c_int64(rows),
        )


def _addresses(arrays: list[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
