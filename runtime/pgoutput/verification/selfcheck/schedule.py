"""Which tables the self-check compares next.

A table is due soon after it is seen first or its catalog rows have changed, and then once a day. All work
together takes at most `_SHARE` of a core on each side; what was saved is spent at once, up to `_SAVED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import Final

from pgoutput.replica import CheckedTable, SelfCheckReport

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
_RETRY: Final = 30.0
"""Seconds until a table that could not be compared is tried again."""
_ATTEMPTS: Final = 3
"""Number of failures in a row after which the error is told."""


class Schedule:
    """Decides which tables are compared next.

    Attributes:
        report: What is known about the tables.
        reading_pause: Seconds between two readings of the catalogs.

    Args:
        report: What an earlier run knew.
        now: The time, in seconds since 1970.
    """

    def __init__(self, report: SelfCheckReport, now: float) -> None:
        self.report = report
        self.reading_pause: float = _MIN_PAUSE
        self._left, self._filled = _SAVED, now
        self._due: dict[int, float] = {}
        self._states: dict[int, str] = {}
        self._failures: dict[int, int] = {}

    def saw(self, states: Mapping[int, tuple[str, str]], seconds: float, now: float) -> None:
        """Note name and state of each published table, and how long it took to read them."""
        self.reading_pause = max(_MIN_PAUSE, seconds / _READING_SHARE)
        known, tables = self.report.tables, {}
        for oid, (name, state) in states.items():
            table = tables[oid] = known.get(oid) or CheckedTable(name)
            table.name = name
            if self._states.get(oid) != state:
                self._states[oid] = state
                is_new = table.state != state or bool(table.difference)
                self._due[oid] = now + self.reading_pause if is_new else table.time + DAY
        self.report.tables = tables
        self._due = {oid: due for oid, due in self._due.items() if oid in tables}

    def next(self, now: float, limit: int) -> list[int]:
        """Return the OIDs of the tables to compare now; those that are due longest come first."""
        self._left = min(_SAVED, self._left + (now - self._filled) * _SHARE)
        self._filled = now
        due = [(due, oid) for oid, due in self._due.items() if due <= now] if self._left > 0 else []
        return [oid for _, oid in nsmallest(limit, due)]

    def spend(self, seconds: float) -> None:
        """Note that work has taken time on a core."""
        self._left -= seconds

    def finish(self, oid: int, state: str, seconds: float, now: float) -> CheckedTable:
        """Note that a table in a state was compared, or need not be; return what is known about it."""
        table = self.report.tables[oid]
        table.state, table.time, table.seconds = state, now, seconds
        self._due[oid] = now + DAY
        self._failures.pop(oid, None)
        all_seconds = sum(one.seconds for one in self.report.tables.values())
        self.report.period = max(DAY, all_seconds / (_SHARE - _READING_SHARE))
        return table

    def retry(self, oid: int, now: float, error: str = "", seconds: float = _RETRY) -> None:
        """Note that a table has to be compared again soon, and why it could not be compared."""
        self._due[oid] = now + seconds
        self._failures[oid] = self._failures.get(oid, 0) + bool(error)
        if self._failures[oid] >= _ATTEMPTS:
            self.report.tables[oid].refusal = error
