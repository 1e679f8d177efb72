"""What a recording says that a server's tables hold, and what they do hold."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import msgspec
import psycopg
from psycopg import sql

from pgoutput.messages import Insert
from pgoutput.segments import Segments, find_gaps, list_segments, read_metadata
from pgoutput.stream import Tables
from tests.server import Server

Rows: TypeAlias = Counter[tuple[object, ...]]


class Comparison(msgspec.Struct, frozen=True):
    """A recording beside the server."""

    messages: int
    transactions: int
    segments: int
    sessions: int
    lost: int
    """Rows of the ledger that were committed, and are in no transaction of the recording."""
    doubled: int
    """Rows of the ledger that are in several, or more than once in one."""
    invented: int
    """Rows of the ledger that the recording has, and the server does not."""
    different: tuple[str, ...]
    """Tables that are not the same."""
    gaps: tuple[str, ...]
    tables: int
    rows: int

    @property
    def equal(self) -> bool:
        """Whether the recording is complete and right."""
        return not (self.lost or self.doubled or self.invented or self.different or self.gaps)


def compare(folder: Path, server: Server) -> Comparison:
    """Replay a recording, and compare it with the tables of the server as they are now."""
    metadata = [read_metadata(path) for path in list_segments(folder)]
    tables, inserted, transactions = Tables(), Counter[str](), 0
    with Segments(folder) as segments:
        for transaction in segments.transactions():
            transactions += 1
            tables.apply(transaction)
            for change in transaction.changes:
                if isinstance(change.message, Insert) and change.relations[0].name == "ledger":
                    inserted[str(change.message.new[0])] += 1
    with server.connect() as connection:
        truth = {oid: _rows(connection, name) for oid, name in _published(connection)}
        ledger = Counter(str(id_) for (id_,) in connection.execute("SELECT id FROM ledger"))
    replayed: dict[int, Rows] = {oid: Counter(tuple(row.values()) for row in tables[oid]) for oid in tables}
    different = [
        f"{tables[oid].relation.name if oid in tables else oid}:"
        f" lacks {_some(rows - replayed.get(oid, Counter()))},"
        f" has {_some(replayed.get(oid, Counter()) - rows)}"
        for oid, rows in truth.items()
        if rows != replayed.get(oid, Counter())
    ]
    return Comparison(
        messages=sum(one.messages for one in metadata),
        transactions=transactions,
        segments=len(metadata),
        sessions=max(one.session for one in metadata),
        lost=len(ledger - inserted),
        doubled=sum(1 for times in inserted.values() if times > 1),
        invented=len(inserted - ledger),
        different=tuple(different),
        gaps=tuple(find_gaps(metadata)),
        tables=len(truth),
        rows=sum(rows.total() for rows in truth.values()),
    )


def _published(connection: psycopg.Connection) -> list[tuple[int, str]]:
    rows = connection.execute(
        "SELECT oid::int8, relname::text FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    return [(oid, name) for oid, name in rows.fetchall()]


def _rows(connection: psycopg.Connection, name: str) -> Rows:
    names = connection.execute(
        "SELECT attname::text FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [name],
    )
    listed = sql.SQL(", ").join(
        sql.SQL("{}::text").format(sql.Identifier(one)) for (one,) in names.fetchall()
    )
    return Counter(connection.execute(sql.SQL("SELECT {} FROM {}").format(listed, sql.Identifier(name))))


def _some(rows: Rows) -> str:
    shown = [tuple(str(cell)[:40] for cell in row) for row in itertools.islice(rows, 3)]
    return f"{rows.total()} rows, such as {shown}" if rows else "none"
