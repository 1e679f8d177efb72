"""The event `Applied`, which describes an applied micro-batch, and the log records of micro-batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from logicalrep._log import log_event
from logicalrep._text import counted
from logicalrep.apply import TableResult

_LOGGER: Final = "logicalrep.replica"
_WORTHWHILE: Final = 50
"""Deletion vectors are recommended if more than this number of rows are written again for each change."""
_MIN_ROWS: Final = 100_000
"""Deletion vectors are not recommended if a micro-batch writes at most this number of rows again."""
_advised: Final = set[str]()
"""Names of the tables for which deletion vectors were recommended."""


class Applied(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="applied"):
    """A micro-batch was applied. `msgspec.json.encode` writes the event as JSON."""

    time: str = msgspec.field(default_factory=lambda: datetime.now(UTC).isoformat())
    """Time of the event by the clock of the process, in ISO 8601."""
    segment: int
    """Number of the micro-batch's last segment."""
    tables: tuple[TableResult, ...]
    """One result for each changed table."""


def log_batch(segment: int, results: Sequence[TableResult]) -> None:
    """Log an applied micro-batch, and a warning for each table that has failed or may now differ.

    Args:
        segment: Number of the last segment of the micro-batch.
        results: The results of the changed tables.
    """
    changes = sum(sum(one.changes.values()) for one in results)
    text = f"up to segment {segment}: {counted(changes, 'change')} of {counted(len(results), 'table')}"
    log_event(_LOGGER, logging.INFO, text, Applied(segment=segment, tables=tuple(results)))
    for one in results:
        name = f"{one.namespace}.{one.name}"
        if one.error:
            log_event(_LOGGER, logging.WARNING, f"{name} failed: {one.error}", one)
        if one.folder:
            log_event(_LOGGER, logging.INFO, f"{name} is now in the folder {one.folder}", one)
        _advise(one)
        if one.may_differ:
            reasons = "; ".join(difference.reason for difference in one.may_differ)
            log_event(_LOGGER, logging.WARNING, f"{name} may differ from its source: {reasons}", one)


def _advise(one: TableResult) -> None:
    """Recommend deletion vectors, once for each table, if commits rewrite many more rows than they change."""
    name, changes = f"{one.namespace}.{one.name}", sum(one.changes.values())
    if name not in _advised and one.written_again > max(_WORTHWHILE * changes, _MIN_ROWS):
        _advised.add(name)
        text = (
            f"{name}: {one.written_again:,} rows were written again for {counted(changes, 'change')}. "
            "With --updates vectors, commits mark the changed rows instead"
        )
        log_event(_LOGGER, logging.INFO, text, one)
