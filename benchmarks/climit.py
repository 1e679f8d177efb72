"""The limit: what it takes in C to walk messages and to copy their cells (`walk.c`, which says what that is).

It is compiled when it is needed, with the C compiler of the machine, and reads the same Arrow buffers in this
process.
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
from benchmarks.turns import Contestant, Run, timed

SOURCE: Final = Path(__file__).with_name("walk.c")
COMPILER: Final = "cc"
FLAGS: Final = ("-O3", "-shared", "-fPIC")


def compiled() -> ctypes.CDLL | None:
    """The compiled function; None where there is no C compiler."""
    if shutil.which(COMPILER) is None:
        return None
    with tempfile.TemporaryDirectory(prefix="pgoutput-bench-") as folder:
        made = Path(folder, "walk.so")
        subprocess.run([COMPILER, *FLAGS, "-o", str(made), str(SOURCE)], check=True)
        library = ctypes.CDLL(str(made))
    library.walk.restype = ctypes.c_int64
    return library


def contestant(library: ctypes.CDLL, columns: int) -> Contestant:
    """For messages with so many columns."""
    walk = Walk(library, columns)
    return Contestant("C", lambda batch: timed(walk.call(batch)), walk.result)


class Walk:
    """Calls of the function, with buffers that are used again for each batch."""

    def __init__(self, library: ctypes.CDLL, columns: int) -> None:
        self._walk, self._columns, self._room = library.walk, columns, (0, 0)

    def call(self, batch: Batch) -> Run:
        """What walks a batch and gives its rows."""
        self._make_room(batch.data.nbytes, 2 * len(batch.data))
        _, offsets, data = batch.data.buffers()
        given = (
            ctypes.c_void_p(data.address),
            ctypes.c_void_p(offsets.address + 4 * batch.data.offset),
            ctypes.c_int64(len(batch.data)),
            ctypes.c_int(self._columns),
        )

        def walk() -> int:
            rows: int = self._walk(*given, *self._taken)
            if rows < 0:
                raise ValueError("the messages are not what the walk in C expects")
            return rows

        return walk

    def result(self, batch: Batch) -> list[Row]:
        rows = int(self.call(batch)())
        wanted = pa.string() if batch.shape.format == "text" else pa.binary()
        columns = []
        for out, ends in zip(self._out, self._ends, strict=True):
            offsets = np.concatenate((np.zeros(1, np.int32), ends[:rows]))
            cells = pa.Array.from_buffers(wanted, rows, [None, pa.py_buffer(offsets), pa.py_buffer(out)])
            columns.append([cell or None for cell in cells.to_pylist()])  # no cell of the streams is empty
        return list(zip(*columns, strict=True))

    def _make_room(self, size: int, rows: int) -> None:
        """Have buffers that are large enough, and what the function is told of them."""
        if self._room >= (size, rows):
            return
        self._room = size, rows
        room = min(size, 8 * size // self._columns)  # no column of the streams has more
        self._out = [np.ones(room, np.uint8) for _ in range(self._columns)]  # so that all pages are there
        self._ends = [np.ones(rows, np.int32) for _ in range(self._columns)]
        self._used = np.zeros(self._columns, np.int32)
        self._taken = (
            _addresses(self._out),
            _addresses(self._ends),
            ctypes.c_void_p(self._used.ctypes.data),
            ctypes.c_int32(room),
            ctypes.c_int64(rows),
        )


def _addresses(arrays: list[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
