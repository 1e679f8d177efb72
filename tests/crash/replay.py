"""What a recording says that a server's tables hold, and what they do hold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import psycopg
from psycopg import pq

from pgoutput.messages import Cell, Insert
from pgoutput.recording import RecordingReader, find_inconsistencies, list_segments, read_metadata
from pgoutput.stream import Tables
from tests.crash import publisher
from tests.server import Server

Rows: TypeAlias = Counter[tuple[object, ...]]

LEDGER: Final = "public.ledger"


class Comparison(msgspec.Struct, frozen=True):
    """A recording beside the server."""

    messages: int
    transactions: int
    segments: int
    sessions: int
    timelines: int
    lost: int
    """Rows of the ledger that were committed, and are in no transaction of the recording."""
    doubled: int
    """Rows of the ledger that are in several transactions, or more than once in one."""
    invented: int
    """Rows of the ledger that the recording has, and the server does not."""
    different: tuple[str, ...]
    """Tables that are not the same, and that the recording lists as incomplete."""
    silent: tuple[str, ...]
    """Tables that are not the same, and that the recording does not list as incomplete."""
    unfounded: tuple[str, ...]
    """Tables that the recording lists as incomplete, with its reason, although they were published all the
    time."""
    gaps: tuple[str, ...]
    tables: int
    rows: int

    @property
    def equal(self) -> bool:
        """Whether the recording is right about all tables."""
        return not (self.lost or self.doubled or self.invented or self.silent or self.unfounded or self.gaps)


def compare(folder: Path, server: Server, altered: Mapping[str, list[str]] = {}) -> Comparison:
    """Replay a recording, and compare it with the tables of the server as they are now.

    Args:
        folder: The recording.
        server: Where the tables are.
        altered: Tables of which more or less was published for a time, with their schema, and what was done.
    """
    metadata = [read_metadata(path) for path in list_segments(folder)]
    tables, inserted, transactions = Tables(), Counter[object](), 0
    with RecordingReader(folder) as segments:
        for transaction in segments.transactions():
            transactions += 1
            tables.apply(transaction)
            for change in transaction.changes:
                if isinstance(change.message, Insert) and change.relations[0].name == "ledger":
                    inserted[_bytes(change.message.new[0])] += 1
    replayed: dict[int, Rows] = {
        oid: Counter(tuple(map(_bytes, row.values())) for row in tables[oid]) for oid in tables
    }
    source = metadata[-1].source
    schemas = ["public", *([publisher.SCHEMA] if publisher.PUBLICATIONS[0] in source.publications else [])]
    with server.connect() as connection:
        names = _names(connection, schemas)
        truth = {oid: _rows(connection, name, source.options.get("binary") == "on") for oid, name in names}
    (ledger,) = (Counter(row[0] for row in truth[oid].elements()) for oid, name in names if name == LEDGER)
    listed = {one.oid: one.reason for one in metadata[-1].incomplete}
    differences = {
        oid: f"{name} ({', '.join(altered.get(name, ['not altered']))}):"
        f" lacks {_some(truth[oid] - rows)}, has {_some(rows - truth[oid])}"
        for oid, name in names
        if (rows := replayed.get(oid, Counter())) != truth[oid]
    }
    return Comparison(
        messages=sum(one.messages for one in metadata),
        transactions=transactions,
        segments=len(metadata),
        sessions=max(one.session for one in metadata),
        timelines=len({one.source.timeline for one in metadata}),
        lost=len(ledger - inserted),
        doubled=sum(1 for times in inserted.values() if times > 1),
        invented=len(inserted - ledger),
        different=tuple(text for oid, text in differences.items() if oid in listed),
        silent=tuple(text for oid, text in differences.items() if oid not in listed),
        unfounded=tuple(
            f"{name}: {listed[oid]}" for oid, name in names if oid in listed and name not in altered
        ),
        gaps=tuple(find_inconsistencies(metadata)),
        tables=len(truth),
        rows=sum(rows.total() for rows in truth.values()),
    )


def _names(connection: psycopg.Connection, schemas: list[str]) -> list[tuple[int, str]]:
    """The OIDs of the tables in some schemas, and their names with the schema."""
    rows = connection.execute(
        "SELECT oid::int8, relnamespace::regnamespace || '.' || relname FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = ANY (%s::regnamespace[])",
        [schemas],
    )
    return [(oid, name) for oid, name in rows.fetchall()]


def _rows(connection: psycopg.Connection, name: str, binary: bool) -> Rows:
    """The rows of a table as the server sends them."""
    names = connection.execute(
        "SELECT quote_ident(attname) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [name],
    )
    query = f"SELECT {', '.join(column for (column,) in names)} FROM {name}"
    result = connection.pgconn.exec_params(query.encode(), None, result_format=int(binary))
    assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
    columns = range(result.nfields)
    return Counter(tuple(result.get_value(row, n) for n in columns) for row in range(result.ntuples))


def _bytes(cell: Cell) -> object:
    """A cell as the server has sent it."""
    return cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell


def _some(rows: Rows) -> str:
    shown = [tuple(str(cell)[:40] for cell in row) for row in itertools.islice(rows, 3)]
    return f"{rows.total()} rows, such as {shown}" if rows else "none"
