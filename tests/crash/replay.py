"""Compare a recording with the server's tables after a crash test.

A crash test only adds rows to the table `ledger`. These rows show which transactions were lost or recorded
twice.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

import msgspec
import psycopg
from psycopg import pq

from logicalrep.messages import Cell, Insert, Truncate
from logicalrep.recording import (
    PathOrUri,
    RecordingReader,
    find_inconsistencies,
    locate,
    read_metadata,
    segments_at,
)
from logicalrep.stream import Tables
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
    """Number of rows of the table `ledger` that the server has, but the recording does not have."""
    duplicated: int
    """Number of rows of the table `ledger` that the recording has more than once."""
    invented: int
    """Number of rows of the table `ledger` that the recording has, but the server does not have."""
    different: tuple[str, ...]
    """Tables that differ from the server's tables and that the recording lists as incomplete."""
    silent: tuple[str, ...]
    """Tables that differ from the server's tables, and from what is published of them, but that the recording
    does not list as incomplete."""
    unfounded: tuple[str, ...]
    """Tables listed as incomplete, each with the listed reason, although their publication never changed."""
    gaps: tuple[str, ...]
    tables: int
    rows: int

    @property
    def equal(self) -> bool:
        """Whether no segment is missing, and each table is equal or rightly listed as incomplete.

        A table also counts as equal if the recording has exactly the rows and columns that are published.
        """
        return not (
            self.lost or self.duplicated or self.invented or self.silent or self.unfounded or self.gaps
        )


def compare(folder: PathOrUri, server: Server, altered: Mapping[str, list[str]] = {}) -> Comparison:
    """Replay a recording, and compare the result with the current tables of the server.

    Args:
        folder: Path or URL of the recording.
        server: Server that has the tables.
        altered: Alterations of a table's publication, or "created" for a new table, by qualified name.
    """
    metadata = [read_metadata(path) for path in segments_at(locate(folder))]
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
        is_binary = source.options.get("binary") == "on"
        expected = {oid: _rows(connection, name, is_binary) for oid, name in names}
        published = {
            oid: _published_rows(connection, name, source.publications, is_binary)
            for oid, name in names
            if replayed.get(oid, Counter()) != expected[oid]
        }
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
        silent=tuple(
            text
            for oid, text in differences.items()
            if oid not in listed and published[oid] not in (None, replayed.get(oid, Counter()))
        ),
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
    columns = _columns(connection, name)
    return _query(connection, f"SELECT {', '.join(columns)} FROM {name}", binary)


def _published_rows(
    connection: psycopg.Connection, name: str, publications: Collection[str], binary: bool
) -> Rows | None:
    """Return the published part of a table's rows; None if not all operations are published.

    When a publication is altered, the recorder copies its tables again: as they are published from then on.
    """
    if connection.info.server_version < 150_000:
        return _rows(connection, name, binary)
    found = connection.execute(
        "SELECT attnames::text[], rowfilter, pubinsert AND pubupdate AND pubdelete AND pubtruncate"
        " FROM pg_publication_tables JOIN pg_publication USING (pubname)"
        " WHERE pubname = ANY (%s) AND schemaname || '.' || tablename = %s",
        [[*publications], name],
    ).fetchall()
    if not found:
        return Counter()
    ((names, condition, has_all),) = found
    if not has_all:
        return None
    columns = [column for column in _columns(connection, name) if column.strip('"') in names]
    return _query(connection, f"SELECT {', '.join(columns)} FROM {name} WHERE {condition or 'true'}", binary)


def _columns(connection: psycopg.Connection, name: str) -> list[str]:
    """Return the quoted names of a table's columns."""
    names = connection.execute(
        "SELECT quote_ident(attname) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [name],
    )
    return [column for (column,) in names]


def _query(connection: psycopg.Connection, query: str, binary: bool) -> Rows:
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
