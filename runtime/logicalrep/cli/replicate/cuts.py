"""The command `logicalrep tables`: prints the versions of a target's tables as of one moment."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import typer

from logicalrep._text import qualified_name
from logicalrep.cli.common.printing import print_json, printable
from logicalrep.cli.common.tables import make_table, table_console
from logicalrep.replica import versions_at
from logicalrep.wire import format_lsn, parse_lsn


def show(target: str, as_of: str | None, *, json: bool) -> None:
    """Print the version of each table of a target as of one moment.

    Args:
        target: Folder or URI of the target.
        as_of: An LSN, or a time in ISO 8601, in UTC unless it has a zone; None for the latest moment
            up to which all tables have applied the changes.
        json: Whether to print a JSON object per table.

    Raises:
        typer.BadParameter: `as_of` is neither an LSN nor a time.
        ReplicaError: The target cannot be read, or a table has no version as of the moment.
    """
    lsn, time = _parse_moment(as_of)
    cut = versions_at(target, lsn, time=time)
    shown_lsn = format_lsn(cut.lsn)
    if json:
        for one in cut.tables.values():
            print_json({"lsn": shown_lsn} | msgspec.to_builtins(one))
        return
    table = make_table("table", "version", "place", "may differ")
    for one in cut.tables.values():
        table.add_row(
            qualified_name(one.namespace, one.name),
            "" if one.version is None else str(one.version),
            printable(one.place),
            printable("; ".join(difference.reason for difference in one.may_differ)),
        )
    table_console().print(f"as of LSN {shown_lsn}:", table, sep="\n")


def _parse_moment(text: str | None) -> tuple[int | None, datetime | None]:
    """Parse an LSN or a time; return (LSN, None) or (None, time), and (None, None) without a text."""
    if text is None:
        return None, None
    if "/" in text:
        try:
            return parse_lsn(text), None
        except ValueError as error:
            raise typer.BadParameter(f"--as-of: {error}") from None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"--as-of: {text!r} is neither an LSN such as 16/B374D848 nor a time such as 2026-01-31T12:00:00Z"
        ) from None
    return None, time if time.tzinfo is not None else time.replace(tzinfo=UTC)
