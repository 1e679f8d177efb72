"""The command `pgoutput segments`: prints a recording's segments, schema versions and incomplete tables."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pgoutput.cli.printing import printable
from pgoutput.errors import RecordingError
from pgoutput.recording import (
    Metadata,
    SchemaVersion,
    encode_metadata,
    find_inconsistencies,
    last_acknowledged,
    list_segments,
    locate,
    read_metadata,
)
from pgoutput.wire import format_lsn, to_datetime


def show(console: Console, folder: Path, json: bool) -> None:
    """Print the segments of a recording, its schema versions, publication changes and incomplete tables.

    Raises:
        RecordingError: The recording has no segments, a segment cannot be read, or a segment is missing.
    """
    last = last_acknowledged(locate(folder))
    segments = [read_metadata(path) for path in list_segments(folder)]
    if json:
        for segment in segments:
            sys.stdout.buffer.write(encode_metadata(segment) + b"\n")
    else:
        console.print(_segments(segments), "", _relations(segments), "", sep="\n")
        for table in (_publication_changes(segments), _incomplete(segments)):
            if table.row_count:
                console.print(table, "", sep="\n")
    gaps = list(find_inconsistencies(segments, last=last))
    if gaps:
        raise RecordingError(f"{folder}: {'; '.join(gaps)}")
    if not json:
        console.print(f"{len(segments)} segments, which join without a gap.")


def _segments(segments: list[Metadata]) -> Table:
    columns = (
        "number",
        "session",
        "positions",
        "LSNs",
        "transactions",
        "last commit",
        "unfinished",
        "relations",
    )
    table = _table(*columns)
    for one in segments:
        ended = {end.begin for end in one.ends}
        time = one.last_commit_time
        table.add_row(
            str(one.number),
            "snapshot" if one.kind == "snapshot" else str(one.session),
            f"{one.first_position} … {one.next_position - 1}" if one.messages else "",
            f"{format_lsn(one.start_lsn)} … {format_lsn(one.end_lsn)}",
            str(one.transactions),
            "" if time is None else to_datetime(time).isoformat(" ", "seconds"),
            str(sum(part.begin not in ended for part in one.parts) or ""),
            ", ".join(_name(version) for version in one.relations),
        )
    return table


def _relations(segments: list[Metadata]) -> Table:
    """Return a table to print: the schema versions of all relations, in the order of the stream."""
    table = _table("relation", "OID", "version", "segment", "position", "columns")
    versions: dict[int, tuple[int, dict[str, object]]] = {}
    for segment in segments:
        for version in segment.relations:
            oid = version.relation["oid"]
            number, last = versions.get(oid, (0, {}))
            if version.relation == last:
                continue
            versions[oid] = number + 1, version.relation
            columns = ", ".join(_shown(column["name"]) for column in version.relation["columns"])
            table.add_row(
                _name(version), str(oid), str(number + 1), str(segment.number), str(version.position), columns
            )
    return table


def _publication_changes(segments: list[Metadata]) -> Table:
    """Return a table to print: changes of publications, in the order in which the recorder found them."""
    table = _table("publication", "after", "before", "noticed", "changes")
    for segment in segments:
        for one in segment.publication_changes:
            lsns = format_lsn(one.after_lsn), format_lsn(one.before_lsn)
            time = to_datetime(one.time).isoformat(" ", "seconds")
            table.add_row(_shown(one.publication), *lsns, time, _shown("; ".join(one.changes)))
    return table


def _incomplete(segments: list[Metadata]) -> Table:
    """Return a table to print: the tables that are incomplete at the end of the recording."""
    table = _table("incomplete table", "since", "reason")
    for one in segments[-1].incomplete:
        name = f"{_shown(one.namespace) or 'pg_catalog'}.{_shown(one.name)}"
        table.add_row(name, format_lsn(one.lsn), _shown(one.reason))
    return table


def _table(*names: str) -> Table:
    """Return an empty table to print, with these column headings."""
    return Table(*names, box=None, pad_edge=False)


def _name(version: SchemaVersion) -> str:
    relation = version.relation
    return f"{_shown(relation['namespace']) or 'pg_catalog'}.{_shown(relation['name'])}"


def _shown(name: str | dict[str, str]) -> str:
    """Return a name as printable text; control characters and invalid UTF-8 become escapes."""
    if not isinstance(name, str):
        name = bytes.fromhex(name["text_hex"]).decode("utf-8", "backslashreplace")
    return printable(name)
