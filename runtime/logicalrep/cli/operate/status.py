"""The command `logicalrep status`: a recording, its slot and recorder, and its replicas, on one screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import typer

from logicalrep._extras import require
from logicalrep._text import counted
from logicalrep.cli.common.lag import last_commit_time, seconds_behind
from logicalrep.cli.common.printing import print_json, printable, refused_values
from logicalrep.errors import ReplicationError
from logicalrep.recording import Metadata, Recording, Source, locate
from logicalrep.wire import format_lsn, format_time, parse_lsn

if TYPE_CHECKING:
    from logicalrep.recorder import Connection, SlotStatus
    from logicalrep.replica import Positions, ReplicaTable

LONG_SECONDS: float = 60.0
"""Age in seconds from which an open transaction is printed, if the slot retains WAL for it."""


_PUBLICATIONS = """\
SELECT quote_ident(name), oid FROM unnest({names}::text[]) name LEFT JOIN pg_publication ON pubname = name
WHERE (oid IS NULL OR {oids} <> '{{}}' AND oid::text <> ALL ({oids}::text[]))
    AND current_database() = {database}
    AND (SELECT system_identifier::text FROM pg_control_system()) = {system_identifier}"""
"""Query for the publications that are not those of a recording: name, and OID or NULL."""


class RecordingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a recording, from its last segment."""

    place: str
    recording: str
    """UUID of the recording."""
    server_version: str
    database: str
    slot: str
    publications: tuple[str, ...]
    segments: int
    """Number of segments."""
    missing: int
    """Number of segments that are missing between the first and the last."""
    end_lsn: str
    """Transactions with an end LSN up to this one are recorded."""
    last_commit_time: str | None
    """Time of the last commit, as `logicalrep.wire.format_time` returns it; None if none is found."""
    incomplete: tuple[str, ...]
    """Names of the incomplete tables, with the reasons."""


class FailedTableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a failed table."""

    error: str
    commit_lsn: str | None
    """Commit LSN of the last change that is applied to the table; None if no change is applied."""
    lag_seconds: float | None
    """Seconds since the last commit of the first segment not applied to the table; None without a commit."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a replica."""

    target: str
    segment: int
    """Number of the last segment that is applied to all tables; 0 for none."""
    lag_segments: int
    """Number of segments that are not applied to all tables."""
    lag_bytes: int
    """Bytes of WAL between the end of `segment` and the end of the recording."""
    lag_seconds: float | None
    """Seconds since the last commit of the first segment not applied to all tables; None without a commit."""
    tables: int
    """Number of tables."""
    failed: dict[str, FailedTableStatus]
    """The failed tables, by name."""
    may_differ: tuple[str, ...]
    """Names of the tables that may differ from their source."""
    dropped: tuple[str, ...]
    """Names of the tables whose relations were dropped on the server."""
    self_check_hours: float | None = None
    """Hours in which the self-check compares each table once; None if it has not run."""
    differences: dict[str, str] = {}
    """What the self-check has found in tables that differ from the server, by name."""
    not_compared: dict[str, str] = {}
    """Why the self-check does not compare tables, by name."""


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Output of `logicalrep status`."""

    recording: RecordingStatus
    slot: SlotStatus | None = None
    """State of the slot; None if the slot does not exist, or its state is unknown."""
    slot_unknown: str = ""
    """Why the state of the slot and of its recorder is unknown; empty if it is known."""
    lost: str = ""
    """Why the recording cannot be continued; empty if it can, or if this is unknown."""
    replicas: tuple[ReplicaStatus, ...] = ()


def show(place: str, dsn: str | None, targets: Sequence[str], *, json: bool) -> None:
    """Print the state of a recording, its slot and its replicas; exit with 1 if changes or rows are missing.

    Args:
        place: Path or URI of the recording.
        dsn: Connection string of libpq, to read the state of the slot; None to leave out the slot.
        targets: Paths or URIs of replicas.
        json: Whether to print a JSON object.

    Raises:
        LogicalrepError: The recording or a replica cannot be read.
        ReplicationError: The state of the slot cannot be read; everything else is printed first.
        typer.Exit: With exit code 1: the recording cannot be continued or lacks segments, or a table is
            incomplete, has failed or may differ.
    """
    recording = Recording(place)
    last = recording.last
    assert last is not None
    slot: SlotStatus | None = None
    unknown = "without --dsn, the server is not asked" if dsn is None else ""
    refused: ReplicationError | None = None
    lost = ""
    if dsn is not None:
        try:
            slot, lost = _ask(dsn, last.source, place)
        except ReplicationError as error:
            unknown, refused = str(error), error
    status = Status(
        recording=_recording(recording, last),
        slot=slot,
        slot_unknown=unknown,
        lost=lost,
        replicas=tuple(_replica(recording, last, target) for target in targets),
    )
    if json:
        print_json(status)
    else:
        for name, text in _lines(status):
            print(f"{name:10} {printable(text)}")
    if (
        status.lost
        or status.recording.missing
        or status.recording.incomplete
        or any(one.failed or one.may_differ or one.differences for one in status.replicas)
    ):
        raise typer.Exit(1)
    if refused is not None:
        raise refused


def _recording(recording: Recording, last: Metadata) -> RecordingStatus:
    source, committed = last.source, last_commit_time(recording, last.number)
    return RecordingStatus(
        place=str(recording.location),
        recording=source.recording,
        server_version=source.server_version,
        database=source.database,
        slot=source.slot,
        publications=source.publications,
        segments=len(recording.numbers),
        missing=last.number + 1 - recording.beginning.segment - len(recording.numbers),
        end_lsn=format_lsn(last.end_lsn),
        last_commit_time=None if committed is None else format_time(committed),
        incomplete=tuple(f"{one.namespace}.{one.name}: {one.reason}" for one in last.incomplete),
    )


def _ask(dsn: str, source: Source, place: str) -> tuple[SlotStatus | None, str]:
    """Return the state of a recording's slot, and why the recording cannot be continued; empty if it can."""
    require("recorder", "psycopg")
    from logicalrep.recorder import Connection, read_slot_status

    with refused_values(), Connection(dsn) as connection:
        slot = read_slot_status(connection, source.slot)
        return slot, _lost(slot, place) or _lost_publication(connection, source)


def _lost(slot: SlotStatus | None, place: str) -> str:
    """Return why a recording cannot be continued from its slot; empty if it can."""
    from logicalrep.recorder import stored_lsn

    if slot is None:
        return "the slot does not exist"
    if slot.wal_status == "lost" or slot.invalidation_reason is not None:
        return "the slot has lost WAL"
    # The recorder stores an LSN before it acknowledges the LSN, and the slot was read before the recording.
    # So `acknowledged` is above `stored` only if another client has acknowledged.
    acknowledged, stored = slot.acknowledged_lsn, stored_lsn(place)
    if acknowledged is not None and parse_lsn(acknowledged) > stored:
        return (
            f"another client has read from the slot: the slot is acknowledged up to {acknowledged}, but the "
            f"recording ends at {format_lsn(stored)}"
        )
    return ""


def _lost_publication(connection: Connection, source: Source) -> str:
    """Return why a recording lacks changes of a publication; empty if it lacks none, or on another server."""
    from psycopg import sql

    from logicalrep.recorder import PermissionDenied

    query = sql.SQL(_PUBLICATIONS).format(
        names=[*source.publications],
        oids=[*map(str, source.publication_oids)],
        database=source.database,
        system_identifier=source.system_identifier,
    )
    with suppress(PermissionDenied):  # pg_control_system may be revoked
        for name, oid in connection.query(query):
            if oid is None:
                return f"the publication {name} does not exist (if it was renamed, rename it back)"
            return f"the publication {name} was dropped and created anew, or another was renamed to it"
    return ""


def _replica(recording: Recording, last: Metadata, target: str) -> ReplicaStatus:
    require("replica", "deltalake")
    from logicalrep.replica import Positions, check_owner, read_owner, read_self_check, replica_tables

    owner = read_owner(target)
    check_owner(target, "tables" if owner is None else owner.output, last.source.recording)
    tables = replica_tables(target).values()
    positions = Positions(recording, locate(target))
    failed = [one for one in tables if one.error]
    segment = min(positions.least_segment, *(positions.last_segment(one.oid) for one in failed), sys.maxsize)
    is_known = segment in recording.numbers
    (applied,) = recording.metadata([segment if is_known else recording.numbers[0]])
    start = applied.end_lsn if is_known else applied.start_lsn
    now = time.time()
    names = {one.oid: one.shown_name for one in tables}
    current = [one for one in tables if one.dropped is None]
    found = read_self_check(locate(target))
    return ReplicaStatus(
        target=target,
        segment=segment,
        lag_segments=last.number - segment,
        lag_bytes=max(0, last.end_lsn - start),
        lag_seconds=seconds_behind(recording, segment, now),
        tables=len(tables),
        failed={names[one.oid]: _failed_table(recording, positions, one, now) for one in failed},
        may_differ=tuple(names[one.oid] for one in current if one.may_differ),
        dropped=tuple(names[one.oid] for one in tables if one.dropped is not None),
        self_check_hours=None if found is None else found.period / 3600,
        differences={} if found is None else found.texts("difference"),
        not_compared={} if found is None else found.texts("refusal"),
    )


def _failed_table(
    recording: Recording, positions: Positions, table: ReplicaTable, now: float
) -> FailedTableStatus:
    lsn = positions.positions[table.oid].commit_lsn if table.oid in positions.positions else -1
    return FailedTableStatus(
        error=table.error,
        commit_lsn=None if lsn < 0 else format_lsn(lsn),
        lag_seconds=seconds_behind(recording, positions.last_segment(table.oid), now),
    )


def _lines(status: Status) -> Iterator[tuple[str, str]]:
    """Yield the lines to print, as pairs of a heading (empty if it repeats) and a text."""
    one = status.recording
    publications = ", ".join(one.publications)
    yield "recording", f"{one.place} ({one.recording})"
    yield "source", f"PostgreSQL {one.server_version}, database {one.database}, publications {publications}"
    commit = f", last commit {one.last_commit_time}" if one.last_commit_time else ""
    missing = f"; {one.missing:,} missing, see `logicalrep segments`" if one.missing else ""
    yield "segments", f"{one.segments:,}, up to {one.end_lsn}{commit}{missing}"
    for text in one.incomplete:
        yield "incomplete", text
    if status.lost:
        yield "lost", f"{status.lost}: record anew in another folder"
    if status.slot_unknown:
        yield "slot", f"{one.slot}: unknown: {status.slot_unknown}"
        yield "recorder", "unknown"
    else:
        yield from _slot_lines(one.slot, status.slot)
    for replica in status.replicas:
        failed = f", {len(replica.failed):,} failed" if replica.failed else ""
        tables = counted(replica.tables, "table")
        yield "replica", f"{replica.target}: {tables}{failed}, segment {replica.segment:,}"
        lag = f"{counted(replica.lag_segments, 'segment')}, {counted(replica.lag_bytes, 'byte')} of WAL"
        yield "", f"lag {lag}, {_seconds(replica.lag_seconds)}"
        for name, table in replica.failed.items():
            yield "failed", f"{name}: {table.error}"
            applied = table.commit_lsn or "nothing"
            yield "", f"applied up to {applied}, lag {_seconds(table.lag_seconds)}"
        if replica.may_differ:
            yield "may differ", ", ".join(replica.may_differ)
        for heading, texts in (("differs", replica.differences), ("unchecked", replica.not_compared)):
            yield from ((heading, f"{name}: {text}") for name, text in texts.items())
        if replica.self_check_hours is not None:
            yield "self-check", f"compares each table once in {replica.self_check_hours:,.0f} hours"
        if replica.dropped:
            yield "dropped", ", ".join(replica.dropped)


def _seconds(lag: float | None) -> str:
    return "unknown seconds" if lag is None else f"{lag:,.1f} s"


def _slot_lines(name: str, slot: SlotStatus | None) -> Iterator[tuple[str, str]]:
    if slot is None:
        yield "slot", f"{name} does not exist"
        return
    yield "slot", f"{name}, {slot.invalidation_reason or slot.wal_status or 'valid'}"
    retained = (
        "WAL is lost"
        if slot.retained_wal_bytes is None
        else f"retains {counted(slot.retained_wal_bytes, 'byte')} of WAL"
    )
    safe = slot.safe_wal_bytes
    yield "", retained if safe is None else f"{retained}; {counted(safe, 'byte')} until WAL is lost"
    if (one := slot.oldest_transaction) is not None and (one.seconds or 0.0) >= LONG_SECONDS:
        holder = f"server process {one.pid}" if one.gid is None else f'prepared transaction "{one.gid}"'
        who = ", ".join(filter(None, (f"user {one.user}", one.state)))
        yield "", f"held back by a transaction that is open for {one.seconds:,.0f} s ({holder}, {who})"
    if slot.active_pid is None:
        yield "recorder", "no client streams from the slot"
    else:
        place = f" at {slot.address}" if slot.address else ""
        since = f" since {slot.connected_since}" if slot.connected_since else ""
        state = slot.state or "connected"
        yield (
            "recorder",
            f"{slot.client or 'a client'}{place}: {state}{since} (server process {slot.active_pid})",
        )
    lag = "unknown" if slot.lag_bytes is None else f"{counted(slot.lag_bytes, 'byte')} of WAL"
    yield "", f"lag {lag}, acknowledged up to {slot.acknowledged_lsn or 'nothing'}"
