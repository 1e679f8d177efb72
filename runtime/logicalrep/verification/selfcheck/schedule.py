"""Which tables the self-check compares next.

A table is due soon after it is seen first or its catalog rows have changed, and then once a day. All work
together takes at most `_SHARE` of a core on each side; what was saved is spent at once, up to `_SAVED`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from heapq import nsmallest
from typing import Final

from logicalrep.replica import CheckedTable, SelfCheckReport

DAY: Final = 86_400.0
_SHARE: Final = 0.01
_SAVED: Final = 10.0
"""Largest number of seconds of work that are done without a pause."""
_READING_SHARE: Final = _SHARE / 2
"""Share of a core that the readings of the catalogs may take."""
_MIN_PAUSE: Final = 5.0
"""Smallest number of seconds between two readings of the catalogs, and until a changed table is due.

The recorder, which reads them more often, then has copied or marked the table itself.
"""
_LEAVE_SECONDS: Final = 20.0
"""Seconds for which a table is not published until the replica's table counts as out of date."""
RETRY: Final = 30.0
"""Seconds until a table that could not be compared is tried again."""
_ATTEMPTS: Final = 3
"""Number of failures in a row after which the error is told."""


class Schedule:
    """Decides which tables are compared next.

    Attributes:
        report: What is known about the tables.
        failures: How often in a row a table could not be compared, by OID.
        reading_pause: Seconds between two readings of the catalogs.

    Args:
        report: What an earlier run knew.
        now: The time, in seconds since 1970.
    """

    def __init__(self, report: SelfCheckReport, now: float) -> None:
        self.report = report
        self.failures: Counter[int] = Counter()
        self.reading_pause: float = _MIN_PAUSE
        self._left, self._filled = _SAVED, now
        self._due: dict[int, float] = {}
        self._states: dict[int, str] = {}

    def saw(self, states: Mapping[int, tuple[str, str]], seconds: float, now: float) -> None:
        """Note name and state of each published table, and how long it took to read them.

        Tables that were published before are due a last time: `leave` them if they still are not published.
        """
        self.reading_pause = max(_MIN_PAUSE, seconds / _READING_SHARE)
        known = self.report.tables
        for oid, (name, state) in ({oid: (one.name, "") for oid, one in known.items()} | {**states}).items():
            table = known.setdefault(oid, CheckedTable(name))
            table.name = name
            if self._states.get(oid) != state:
                self._states[oid] = state
                is_new = table.state != state or bool(table.difference)
                pause = self.reading_pause if state else _LEAVE_SECONDS
                self._due[oid] = now + pause if is_new else table.time + DAY

    def leave(self, oid: int) -> CheckedTable:
        """Forget a table, and return what was known about it."""
        del self._due[oid], self._states[oid]
        return self.report.tables.pop(oid)

    def next(self, now: float, limit: int) -> list[int]:
        """Return the OIDs of the tables to compare now; those that are due longest come first."""
        self._left = min(_SAVED, self._left + (now - self._filled) * _SHARE)
        self._filled = now
        due = [(due, oid) for oid, due in self._due.items() if due <= now] if self._left > 0 else []
        return [oid for _, oid in nsmallest(limit, due)]

    def spend(self, seconds: float) -> None:
        """Note that work has taken time on a core."""
        self._left -= seconds

    def finish(self, oid: int, state: str, seconds: float, now: float, refusal: str = "") -> CheckedTable:
        """Note that a table in a state was compared, or is not to be; return what is known about it."""
        table = self.report.tables[oid]
        table.state, table.time, table.seconds, table.refusal = state, now, seconds, refusal
        self._due[oid] = now + DAY
        del self.failures[oid]
        all_seconds = sum(one.seconds for one in self.report.tables.values())
        self.report.period = max(DAY, all_seconds / (_SHARE - _READING_SHARE))
        return table

    def retry(self, oid: int, now: float, seconds: float = RETRY, error: str = "") -> None:
        """Note that a table has to be compared again soon, and why it could not be compared."""
        self._due[oid] = now + seconds
        self.failures[oid] += bool(error)
        if self.failures[oid] >= _ATTEMPTS:
            self.report.tables[oid].refusal = error or self.report.tables[oid].refusal
