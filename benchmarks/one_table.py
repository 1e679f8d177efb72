"""A recording of changes of one table with six columns, made without a server.

Transactions of ten; 60 % inserts, 30 % updates and 10 % deletes of random rows.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.streams import OID, Numbers, Shape
from logicalrep import messages, v4
from logicalrep.columns import encode_deletes, encode_inserts, encode_updates
from logicalrep.messages import XLogData
from logicalrep.recording import SegmentWriter, SessionStart, Source
from logicalrep.replica import replica_tables
from logicalrep.values import to_arrow

SOURCE = Source(
    recording="benchmark",
    system_identifier="1",
    server_version="18.4",
    database="bench",
    slot="bench",
    publications=("bench",),
    proto_version=4,
)
SHAPE = Shape(columns=6, format="text")
PER_TRANSACTION = 10
PER_SEGMENT = 100_000


def write(folder: Path, count: int) -> dict[int, int]:
    """Write a recording; return for each remaining row's key the number of the change that wrote the row."""
    folder.mkdir()
    writer = SegmentWriter(folder, SOURCE, SessionStart(session=1, number=1, position=0, lsn=0))
    random = Random(1)
    written: dict[int, int] = {}
    live: list[int] = []
    inserted = 0
    relation = XLogData(wal_start=0, wal_end=0, send_time=0, data=SHAPE.relation)
    for start in range(0, count, PER_SEGMENT):
        size = min(PER_SEGMENT, count - start)
        operations = random.choices("IUD", (60, 30, 10), k=size)
        keys = np.empty(size, np.int64)
        for at, operation in enumerate(operations):
            if operation == "I" or not live:
                operations[at], key = "I", inserted
                inserted += 1
                live.append(key)
            else:
                chosen = random.randrange(len(live))
                key = live[chosen]
                if operation == "D":
                    live[chosen] = live[-1]
                    live.pop()
                    del written[key]
            if operations[at] != "D":
                written[key] = start + at
            keys[at] = key
        data = encode(np.array(operations), keys, np.arange(start, start + size)).to_pylist()
        wrapped: list[XLogData] = []
        for first in range(0, size, PER_TRANSACTION):
            number = (start + first) // PER_TRANSACTION + 1
            lsn, time = 1000 * number, 800_000_000_000_000 + number
            commit = messages.Commit(commit_lsn=lsn, end_lsn=lsn + 1, commit_time=time)
            wrapped.append(
                XLogData(
                    wal_start=lsn,
                    wal_end=lsn,
                    send_time=0,
                    data=v4.encode(messages.Begin(final_lsn=lsn, commit_time=time, xid=number)),
                )
            )
            wrapped += [relation] * (start + first == 0)
            wrapped += [
                XLogData(wal_start=lsn, wal_end=lsn, send_time=0, data=one)
                for one in data[first : first + PER_TRANSACTION]
            ]
            wrapped.append(XLogData(wal_start=lsn, wal_end=lsn, send_time=0, data=v4.encode(commit)))
        writer.write(wrapped, 1_000_000 + start)
        writer.rotate()
    return written


def encode(operations: np.ndarray, keys: Numbers, numbers: Numbers) -> pa.BinaryArray:
    """Return the encoded messages of changes."""
    parts = {operation: np.flatnonzero(operations == operation) for operation in "IUD"}
    inserts, updates = (
        encoder(OID, texts(keys[parts[one]], numbers[parts[one]]))
        for one, encoder in (("I", encode_inserts), ("U", encode_updates))
    )
    nothing = [pa.nulls(len(parts["D"]), pa.string())] * (SHAPE.columns - 1)
    deletes = encode_deletes(OID, key=[pa.array(keys[parts["D"]]).cast(pa.string()), *nothing])
    order = np.argsort(np.concatenate(list(parts.values())))
    return pa.concat_arrays([inserts, updates, deletes]).take(pa.array(order))


def texts(keys: Numbers, numbers: Numbers) -> list[pa.Array]:
    """Return the rows that changes write, as one array of texts for each column."""
    columns = enumerate(SHAPE.types[1:], 1)
    return [pa.array(keys).cast(pa.string()), *(type_.text(numbers + 7 * at) for at, type_ in columns)]


def check_equal(target: Path, rows: dict[int, int]) -> None:
    """Raise an error unless the Delta table has exactly the given rows."""
    (table,) = replica_tables(target).values()
    actual = DeltaTable(table.place).to_pyarrow_table().sort_by("c0")
    keys = np.array(sorted(rows))
    expected = texts(keys, np.array([rows[key] for key in keys.tolist()]))
    for name, cells, type_ in zip(actual.column_names, expected, SHAPE.types, strict=False):
        column, rescued = to_arrow(cells.to_pylist(), type_.oid, type_.modifier)
        assert not rescued
        assert actual[name].combine_chunks().cast(column.type).equals(column), f"column {name} differs"
    assert pc.all(actual[actual.column_names[-1]].is_null()).as_py()
