"""Compare a recording with the server's tables after a crash test.

A crash test only adds rows to the table `ledger`. These rows show which transactions were lost or recorded
twice.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import psycopg
from psycopg import pq

from pgoutput.messages import Cell, Insert, Truncate
from pgoutput.recording import RecordingReader, find_inconsistencies, list_segments, read_metadata
from pgoutput.stream import Tables
from tests.crash import publisher
from tests.server import Server

Rows: TypeAlias = Counter[tuple[object, ...]]

LEDGER: Final = "public.ledger"


class Comparison(msgspec.Struct, frozen=True):
    """Result of comparing a recording with the server's tables after a crash test."""

    messages: int
    transactions: int
    segments: int
    sessions: int
    timelines: int
    lost: int
    """Number of rows that the server's table `ledger` has, but the recording does not have."""
    duplicated: int
    """Number of rows of the table `ledger` that the recording has more than once."""
    invented: int
    """Number of rows of the table `ledger` that the recording has, but the server does not have."""
    different: tuple[str, ...]
    """Tables that differ from the server's tables and that the recording lists as incomplete."""
    silent: tuple[str, ...]
    """Tables that differ from the server's tables but that the recording does not list as incomplete."""
    unfounded: tuple[str, ...]
    """Tables listed as incomplete, each with the listed reason, although their publication never changed."""
    gaps: tuple[str, ...]
    tables: int
    rows: int

    @property
    def equal(self) -> bool:
        """Whether no segment is missing, and each table is equal or rightly listed as incomplete."""
        return not (
            self.lost or self.duplicated or self.invented or self.silent or self.unfounded or self.gaps
        )


def compare(folder: Path, server: Server, altered: Mapping[str, list[str]] = {}) -> Comparison:
    """Replay a recording, and compare the result with the current tables of the server.

    Args:
        folder: Folder of the recording.
        server: Server that has the tables.
        altered: Alterations of a table's publication, or "created" for a new table, by qualified name.
    """
    metadata = [read_metadata(path) for path in list_segments(folder)]
    tables, inserted, transactions = Tables(), Counter[object](), 0
    with RecordingReader(folder) as segments:
        for transaction in segments.transactions():
            transactions += 1
            tables.apply(transaction)
            written = Counter[object](
                _bytes(change.message.new[0])
                for change in transaction.changes
                if isinstance(change.message, Insert) and change.relations[0].name == "ledger"
            )
            # Rows that were copied while the stream was recorded may be in the stream too.
            first = [type(change.message) for change in transaction.changes[:1]]
            if not transaction.xid and first == [Truncate]:
                inserted |= written
            else:
                inserted.update(written)
    replayed: dict[int, Rows] = {
        oid: Counter(tuple(map(_bytes, row.values())) for row in tables[oid]) for oid in tables
    }
    source = metadata[-1].source
    schemas = ["public", *([publisher.SCHEMA] if publisher.PUBLICATIONS[0] in source.publications else [])]
    with server.connect() as connection:
        names = _names(connection, schemas)
        expected = {oid: _rows(connection, name, source.options.get("binary") == "on") for oid, name in names}
    (ledger,) = (Counter(row[0] for row in expected[oid].elements()) for oid, name in names if name == LEDGER)
    listed = {one.oid: one.reason for one in metadata[-1].incomplete}
    differences = {
        oid: f"{name} ({', '.join(altered.get(name, ['not altered']))}):"
        f" lacks {_some(expected[oid] - rows)}, has {_some(rows - expected[oid])}"
        for oid, name in names
        if (rows := replayed.get(oid, Counter())) != expected[oid]
    }
    return Comparison(
        messages=sum(one.messages for one in metadata),
        transactions=transactions,
        segments=len(metadata),
        sessions=max(one.session for one in metadata),
        timelines=len({one.source.timeline for one in metadata}),
        lost=len(ledger - inserted),
        duplicated=sum(1 for times in inserted.values() if times > 1),
        invented=len(inserted - ledger),
        different=tuple(text for oid, text in differences.items() if oid in listed),
        silent=tuple(text for oid, text in differences.items() if oid not in listed),
        unfounded=tuple(
            f"{name}: {listed[oid]}" for oid, name in names if oid in listed and name not in altered
        ),
        gaps=tuple(find_inconsistencies(metadata)),
        tables=len(expected),
        rows=sum(rows.total() for rows in expected.values()),
    )


def _names(connection: psycopg.Connection, schemas: list[str]) -> list[tuple[int, str]]:
    """Return the OID and the qualified name of each table in the given schemas."""
    rows = connection.execute(
        "SELECT oid::int8, relnamespace::regnamespace || '.' || relname FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = ANY (%s::regnamespace[])",
        [schemas],
    )
    return [(oid, name) for oid, name in rows.fetchall()]


def _rows(connection: psycopg.Connection, name: str, binary: bool) -> Rows:
    """Return the rows of a table, in text or binary format like the values in the stream."""
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
    """Return the bytes that the server has sent for a cell; NULL and unchanged values stay as they are."""
    return cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell


def _some(rows: Rows) -> str:
    shown = [tuple(str(cell)[:40] for cell in row) for row in itertools.islice(rows, 3)]
    return f"{rows.total()} rows, such as {shown}" if rows else "none"
