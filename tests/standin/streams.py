"""Synthetic streams for tests of the stand-in server: many small transactions, also as capture files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from logicalrep import messages
from logicalrep.capturefile import Header, encode_header, encode_record
from logicalrep.messages import PrimaryKeepalive, XLogData
from tests.messages import make_column, make_relation
from tests.versions import OLDEST, PLAIN

TRANSACTION = 98
"""Number of rows that each transaction inserts. With Begin and Commit, a transaction has 100 messages."""

STEP = 1000
"""Number of WAL bytes that each transaction takes."""

COMMIT = 48
"""Number of WAL bytes of each commit record; part of `STEP`."""

RELATION = make_relation(make_column("id", 23, key=True), oid=16384)


class Repeated:
    """Stream factory whose transactions all insert rows with different keys and are otherwise equal.

    Attributes:
        transactions: Number of transactions.
        end_lsn: End LSN of the last transaction.
        started: Argument `after_lsn` of each call of `stream`.
    """

    def __init__(self, transactions: int) -> None:
        self.transactions = transactions
        self.end_lsn = (transactions + 1) * STEP
        self.started: list[int] = []

    def stream(self, *, after_lsn: int = 0, **options: Any) -> Iterator[XLogData | PrimaryKeepalive]:
        self.started.append(after_lsn)
        return self._stream(after_lsn)

    def _stream(self, after_lsn: int) -> Iterator[XLogData]:
        described = False
        for number in range(1, self.transactions + 1):
            end_lsn = (number + 1) * STEP
            commit_lsn = end_lsn - COMMIT
            if commit_lsn < after_lsn:
                continue
            begin = PLAIN.encode(messages.Begin(final_lsn=commit_lsn, commit_time=number, xid=number))
            first_lsn = end_lsn - STEP + COMMIT
            yield XLogData(wal_start=first_lsn, wal_end=first_lsn, send_time=0, data=begin)
            if not described:
                yield XLogData(wal_start=0, wal_end=0, send_time=0, data=PLAIN.encode(RELATION))
                described = True
            for lsn, row in enumerate(inserts(number), first_lsn):  # Debezium tells rows apart by their LSN
                yield XLogData(wal_start=lsn, wal_end=lsn, send_time=0, data=row)
            commit = PLAIN.encode(messages.Commit(commit_lsn=commit_lsn, end_lsn=end_lsn, commit_time=number))
            yield XLogData(wal_start=end_lsn, wal_end=end_lsn, send_time=0, data=commit)

    def payloads(self, after_lsn: int = 0) -> list[bytes]:
        """Return the encoded messages for a client that has received everything up to `after_lsn`."""
        return [one.data for one in self._stream(after_lsn)]


class ReplyRequesting(Repeated):
    """The stream factory `Repeated`, with a keepalive that requests a reply after every 100 transactions."""

    def stream(self, *, after_lsn: int = 0, **options: Any) -> Iterator[XLogData | PrimaryKeepalive]:
        for one in super().stream(after_lsn=after_lsn):
            yield one
            if one.wal_end % (100 * STEP) == 0 and isinstance(one, XLogData) and one.data[:1] == b"C":
                yield PrimaryKeepalive(wal_end=one.wal_end, send_time=0, reply_requested=True)


@cache
def inserts(number: int) -> tuple[bytes, ...]:
    """Return the encoded Insert messages of the transaction with this number."""
    first = number * TRANSACTION
    return tuple(
        PLAIN.encode(messages.Insert(relation_oid=RELATION.oid, new=(str(first + row),)))
        for row in range(TRANSACTION)
    )


def write_capture_file(path: Path, payloads: list[bytes]) -> Path:
    """Write encoded messages to a capture file without envelopes, as if read by SQL functions."""
    header = Header(proto_version=OLDEST, options={"publication_names": '"p"'}, server_version="18.4")
    lines = (encode_record("data", payload) for payload in payloads)
    path.write_bytes(encode_header(header) + b"".join(lines))
    return path
