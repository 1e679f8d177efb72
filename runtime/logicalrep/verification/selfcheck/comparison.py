"""Compares one table: looks at it on the server, reads it in the replica, and looks at it again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from logicalrep._text import one_line
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.replica import replica_table
from logicalrep.verification.selfcheck import source
from logicalrep.verification.selfcheck.published import Publications, PublishedTable
from logicalrep.verification.selfcheck.replica import Digests, ReplicaTable
from logicalrep.verification.selfcheck.source import Key, Rows

_SAMPLE: Final = 500
"""Number of rows that are drawn on each side from a table that is not small."""
_LEAST_SAMPLE: Final = 10


class Comparison:
    """The comparison of one table. It is complete after `look_first`, `read_replica` and `look_again`.

    Attributes:
        keys: The keys to compare; None for the whole table.
        exists: Whether the replica has the table.
        refusal: Why the table is not compared; empty if it is.
        error: Why the table could not be compared this time; empty if it was.

    Args:
        server: The publications, and the connection to the server.
        target: The folder that holds the replica.
        table: The table.
        keys: The keys to compare; None for the whole table or a sample.
        failures: How often in a row the table could not be compared: perhaps reading it takes too long.
    """

    def __init__(
        self,
        server: Publications,
        target: Location,
        table: PublishedTable,
        keys: set[Key] | None,
        failures: int,
    ) -> None:
        self._server, self._target, self.table, self.keys = server, target, table, keys
        self._failures, self._chance = failures, Random()
        self._seed = self._chance.getrandbits(64)
        self.exists = True
        self.refusal = table.refusal
        self.error: str = ""
        self._first: Rows = {}
        self._second: Rows = {}
        self._there: Digests = {}
        self._is_complete = True

    def run(self, step: Callable[[Comparison], None]) -> None:
        """Do a step unless an earlier one failed; keep the error: other tables are compared."""
        if not (self.error or self.refusal):
            try:
                step(self)
            except Exception as error:
                self.error = one_line(error)

    def look_first(self) -> None:
        """Choose the rows to compare, and look at them on the server."""
        table, server = self.table, self._server
        known = replica_table(self._target.place, table.oid)
        if known is not None and known.error:
            raise ReplicaError(known.error)
        replica = ReplicaTable(self._target, table, self._seed)
        self.exists = replica.exists
        is_small = replica.is_small and sum(one.pages for one in table.leaves) <= source.MAX_PAGES
        is_large = sum(one.rows for one in table.leaves) > 2 * source.MAX_ROWS
        is_slow = bool(table.key) and (is_large or self._failures > 0)
        if self.keys is not None or not self.exists or (is_small and not is_slow):
            self._first = self._look()
            if self.keys is not None or sum(map(len, self._first.values())) <= source.MAX_ROWS:
                return
        if not table.key:
            self.refusal = f"it has no key, and more than {source.MAX_ROWS:,} rows"
            return
        count = max(_LEAST_SAMPLE, _SAMPLE // 5**self._failures)
        drawn = replica.draw(count)
        self._first = source.look_at_pages(server, table, count, self._chance)
        self._first |= source.look_up(server, table, drawn - self._first.keys())
        self.keys = drawn | self._first.keys()

    def read_replica(self) -> None:
        """Read the rows in the replica, which is at the LSN of the first look or after it."""
        replica = ReplicaTable(self._target, self.table, self._seed)
        if replica.exists and self.keys is None:
            self._there = replica.all()
        elif replica.exists:
            self._there, self._is_complete = replica.find(self.keys or set())

    def look_again(self) -> None:
        """Look at the same rows on the server."""
        self._second = self._look()

    def _look(self) -> Rows:
        if self.keys is not None:
            return source.look_up(self._server, self.table, self.keys)
        return source.look_at_all(self._server, self.table, source.MAX_ROWS + 1 if self.exists else 1)

    @property
    def rows(self) -> int:
        """Number of rows that were compared."""
        return sum(map(len, self._second.values()))

    def different(self) -> set[Key]:
        """Return the keys whose rows did not change between the looks, and differ from the replica's."""
        keys = self._first.keys() | self._second.keys() | self._there.keys() | (self.keys or set())
        return {key for key in keys if self._differs(key)}

    def _differs(self, key: Key) -> bool:
        first, second = (sorted(rows.get(key, ())) for rows in (self._first, self._second))
        there = self._there.get(key, [])
        is_known = self._is_complete or bool(there)
        return is_known and first == second and sorted(one.digest for one in second) != sorted(there)
