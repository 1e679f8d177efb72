"""Make tables of text, which commands print in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from logicalrep.cli.common.printing import printable
from logicalrep.wire import format_lsn

if TYPE_CHECKING:
    from logicalrep.recording import Reader


def table_console() -> Console:
    """Return a console that does not break the lines of a table, so that IDs and names stay whole."""
    return Console(width=1000, highlight=False, markup=False)


def make_table(*names: str) -> Table:
    """Return an empty table to print, with these column headings."""
    return Table(*names, box=None, pad_edge=False)


def readers_table(readers: Iterable[Reader]) -> Table:
    """Return a table to print: the readers of a recording, and the first segment that each still needs."""
    table = make_table("reader", "kind", "segment", "LSN", "last read", "host", "target")
    for one in readers:
        numbers = str(one.segment), format_lsn(one.lsn), one.time
        table.add_row(one.id, one.kind, *numbers, printable(one.host), printable(one.target))
    return table
