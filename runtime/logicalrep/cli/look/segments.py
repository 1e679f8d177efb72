"""The command `logicalrep segments`: prints a recording's segments, schema versions, and states of tables."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rich.table import Table

from logicalrep._text import counted, listed
from logicalrep.cli.common.printing import print_json, printable
from logicalrep.cli.common.tables import make_table, readers_table, table_console
from logicalrep.errors import RecordingError
from logicalrep.recording import (
    Location,
    Metadata,
    SchemaVersion,
    encode_metadata,
    find_inconsistencies,
    last_acknowledged,
    locate,
    read_beginning,
    read_metadata,
    read_readers,
    segments_at,
    verified_tables,
)
from logicalrep.wire import format_lsn, format_time

_THREADS: Final = 16
"""Number of segments whose metadata is read concurrently: a store can be slow to answer."""


def show(folder: str, json: bool) -> None:
    """Print the segments of a recording, its schema versions, publication changes, readers and tables.

    Tables are printed if they are incomplete, or if `verify` has found the table of a replica equal.

    Raises:
        RecordingError: The recording has no segments, a segment cannot be read, or a segment is missing.
    """
    console = table_console()
    location = locate(folder)
    last = last_acknowledged(location)
    with ThreadPoolExecutor(_THREADS) as pool:
        segments = list(pool.map(read_metadata, segments_at(location)))
    if json:
        for segment in segments:
            sys.stdout.buffer.write(encode_metadata(segment) + b"\n")
        for one in (*verified_tables(location), *read_readers(location)):
            print_json(one)
    else:
        console.print(_segments(segments), "", _relations(segments), "", sep="\n")
        states = _incomplete(segments), _verified(location), readers_table(read_readers(location))
        for printed in (_upgrades(segments), _publication_changes(segments), *states):
            if printed.row_count:
                console.print(printed, "", sep="\n")
    beginning = read_beginning(location)
    gaps = list(find_inconsistencies(segments, beginning.segment, last))
    if gaps:
        raise RecordingError(f"{location}: {listed(gaps, '; ')}")
    if not json:
        console.print(f"{counted(len(segments), 'segment')}, without a gap.")
        if beginning.time:
            place = f"segment {beginning.segment} (LSN {format_lsn(beginning.lsn)})"
            console.print(f"The recording begins with {place}: earlier segments were pruned.")


def _segments(segments: list[Metadata]) -> Table:
    stream = "number", "session", "positions", "LSNs"
    table = make_table(*stream, "transactions", "last commit", "unfinished", "relations")
    for one in segments:
        ended = {end.begin for end in one.ends}
        time = one.last_commit_time
        table.add_row(
            str(one.number),
            "snapshot" if one.kind == "snapshot" else str(one.session),
            f"{one.first_position} … {one.next_position - 1}" if one.messages else "",
            f"{format_lsn(one.start_lsn)} … {format_lsn(one.end_lsn)}",
            str(one.transactions),
            "" if time is None else format_time(time),
            str(sum(part.begin not in ended for part in one.parts) or ""),
            ", ".join(_relation_name(version) for version in one.relations),
        )
    return table


def _relations(segments: list[Metadata]) -> Table:
    """Return a table to print: the schema versions of all relations, in the order of the stream."""
    table = make_table("relation", "OID", "version", "segment", "position", "columns")
    versions: dict[int, tuple[int, dict[str, object]]] = {}
    for segment in segments:
        for version in segment.relations:
            oid = version.relation["oid"]
            number, last = versions.get(oid, (0, {}))
            if version.relation == last:
                continue
            versions[oid] = number + 1, version.relation
            columns = ", ".join(_shown(column["name"]) for column in version.relation["columns"])
            numbers = str(oid), str(number + 1), str(segment.number), str(version.position)
            table.add_row(_relation_name(version), *numbers, columns)
    return table


def _upgrades(segments: list[Metadata]) -> Table:
    """Return a table to print: the upgrades of the server since the recording began."""
    table = make_table("upgraded from", "at", "continued", "system before", "system after")
    source = segments[-1].source
    systems = [*(one.system_identifier for one in source.upgrades), source.system_identifier]
    for one, before, after in zip(source.upgrades, systems, systems[1:], strict=False):
        version, place = f"PostgreSQL {one.server_version}", format_lsn(one.lsn)
        table.add_row(version, place, format_time(one.time), before, after)
    return table


def _publication_changes(segments: list[Metadata]) -> Table:
    """Return a table to print: changes of publications, in the order in which the recorder found them."""
    table = make_table("publication", "after", "before", "noticed", "changes")
    for segment in segments:
        for one in segment.publication_changes:
            lsns = format_lsn(one.after_lsn), format_lsn(one.before_lsn)
            changes = _shown("; ".join(one.changes))
            table.add_row(_shown(one.publication), *lsns, format_time(one.time), changes)
    return table


def _incomplete(segments: list[Metadata]) -> Table:
    """Return a table to print: the tables that are incomplete at the end of the recording."""
    table = make_table("incomplete table", "since", "reason")
    for one in segments[-1].incomplete:
        table.add_row(_name(one.namespace, one.name), format_lsn(one.lsn), _shown(one.reason))
    return table


def _verified(folder: Location) -> Table:
    """Return a table to print: the tables of replicas that were found equal to the source."""
    table = make_table("verified table", "through", "time", "rows", "target")
    for one in verified_tables(folder):
        through = one.verified_through
        numbers = format_lsn(through.lsn), through.time, f"{through.rows:,}"
        table.add_row(printable(one.table), *numbers, printable(one.target))
    return table


def _relation_name(version: SchemaVersion) -> str:
    return _name(version.relation["namespace"], version.relation["name"])


def _name(namespace: str | dict[str, str], name: str | dict[str, str]) -> str:
    return f"{_shown(namespace) or 'pg_catalog'}.{_shown(name)}"


def _shown(name: str | dict[str, str]) -> str:
    """Return a name as printable text; control characters and invalid UTF-8 become escapes.

    A dict is the JSON form of a name that is not valid UTF-8.
    """
    if not isinstance(name, str):
        name = bytes.fromhex(name["text_hex"]).decode("utf-8", "backslashreplace")
    return printable(name)
