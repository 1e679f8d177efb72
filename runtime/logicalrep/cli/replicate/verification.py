"""The command `logicalrep verify`: prints which rows of a replica differ from the source."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from logicalrep._text import counted
from logicalrep.cli.common.permissions import refuse_root, restrict_permissions
from logicalrep.cli.common.printing import complain, print_json, printable
from logicalrep.cli.record.snapshots import snapshot
from logicalrep.recorder import Event, Waiting, event_text
from logicalrep.verification import AwaitingRecording, RowDifference, TableVerdict, verify_tables
from logicalrep.wire import format_lsn

_REPAIRED_ROWS: Final = 100_000
"""Largest number of differing rows of a table that are copied alone; if more differ, all rows are copied."""


def verify(
    recording: str,
    target: str,
    dsn: str,
    tables: Sequence[str],
    *,
    json: bool,
    rate: float | None,
    repair: bool,
) -> None:
    """Compare the tables of a replica with the source; exit with code 1 unless all are equal.

    Args:
        recording: Folder or URL of the recording.
        target: Folder of the replica.
        dsn: Connection string of the source.
        tables: Names of the tables to compare; all published tables if empty.
        json: Whether to print a JSON object per table.
        rate: Number of rows to read from the source per second; None for no limit.
        repair: Whether to have the recorder copy the differing rows to the recording again.

    Raises:
        LogicalrepError: The tables cannot be compared.
        ValueError: The DSN cannot be parsed.
    """
    refuse_root(recording, target)
    restrict_permissions(target)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    unequal = []
    max_keys = _REPAIRED_ROWS if repair else 0
    verdicts = verify_tables(
        recording, target, dsn, tables=tables, rate=rate, max_keys=max_keys, on_event=_report
    )
    for verdict in verdicts:
        if json:
            print_json(_as_json(verdict), flush=True)
        else:
            _show(console, verdict)
        if not verdict.is_equal:
            unequal.append(verdict)
    if repair:
        _repair(recording, [verdict for verdict in unequal if verdict.different_rows])
    if unequal:
        raise typer.Exit(1)


def _repair(recording: str, different: Sequence[TableVerdict]) -> None:
    """Have the recorder copy the differing rows again, or all rows of a table without known keys.

    A verdict has no keys if keys do not identify the rows, or if too many rows differ.
    """
    for verdict in different:
        rows = "all rows" if verdict.keys is None else "only the rows that differ"
        complain(f"{printable(verdict.table)}: the recorder copies {rows}")
    if different:
        keys = {verdict.table: verdict.keys for verdict in different if verdict.keys is not None}
        snapshot(recording, [verdict.table for verdict in different], keys)


def _report(event: Event) -> None:
    if isinstance(event, Waiting):
        complain(event_text(event))
    elif isinstance(event, AwaitingRecording):
        complain(f"waiting until the recording, now at {event.stored_lsn}, reaches {event.lsn}")


def _as_json(verdict: TableVerdict) -> dict[str, object]:
    fields = msgspec.structs.asdict(verdict)
    del fields["keys"]
    return fields | {"lsn": format_lsn(verdict.lsn), "equal": verdict.is_equal}


def _show(console: Console, verdict: TableVerdict) -> None:
    name, place = printable(verdict.table), f"as of {format_lsn(verdict.lsn)}"
    if verdict.pending:
        changes = counted(verdict.pending, "recorded change")
        place += f", with {changes} that the table has not applied yet"
    if verdict.not_compared:
        place += f", without the generated columns {', '.join(map(printable, verdict.not_compared))}, "
        place += "which are not published"
    if verdict.error:
        console.print(f"{name}: not compared {place}: {printable(verdict.error)}")
    elif verdict.is_equal:
        console.print(f"{name}: {counted(verdict.rows, 'row')}, equal {place}")
    else:
        here, there = verdict.only_in_source, verdict.only_in_replica
        counts = {
            "different": verdict.different_rows - here - there,
            "only in the source": here,
            "only in the replica": there,
        }
        texts = [
            counted(verdict.rows, "row"),
            *(f"{number:,} {kind}" for kind, number in counts.items() if number),
        ]
        console.print(f"{name}: {', '.join(texts)} {place}")
        console.print(_differences(verdict.differences))
        if (hidden := verdict.different_rows - len(verdict.differences)) > 0:
            console.print(f"and {counted(hidden, 'more row')}")


def _differences(rows: Sequence[RowDifference]) -> Table:
    """Return a table to print, with a line for each value that differs; equal rows share a line."""
    table = Table("key", "column", "source", "replica", box=box.SIMPLE)
    for row, equal in groupby(rows):
        key = ", ".join(f"{printable(name)}={_shown(value)}" for name, value in row.key.items())
        if (times := len(list(equal))) > 1:
            key += f" ({times} times)"
        if not row.columns:
            sides = ("", row.kind) if row.kind == "only in the replica" else (row.kind, "")
            table.add_row(key, "", *sides)
        for name, value in row.columns.items():
            replica = "(never sent)" if value.never_sent else _shown(value.replica)
            table.add_row(key, printable(name), _shown(value.source), replica)
            key = ""
    return table


def _shown(value: str | None) -> str:
    return "NULL" if value is None else repr(value)
