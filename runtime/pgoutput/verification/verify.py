"""Compare the Delta tables of a replica with the tables of the source, as of one LSN."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event as Flag
from typing import Final

import msgspec

from pgoutput._text import one_line
from pgoutput.errors import RecordingError, ReplicaError, ReplicationError
from pgoutput.messages import ColumnFlag, Relation
from pgoutput.recorder import (
    Connection,
    Event,
    ExportedSnapshot,
    Keys,
    PublishedTable,
    Recorder,
    RecorderOptions,
    export_snapshot,
    identify,
    is_recording,
    key_columns,
    published_tables,
    stored_lsn,
)
from pgoutput.recording import (
    Location,
    PathOrUri,
    Recording,
    Source,
    Verified,
    VerifiedTable,
    locate,
    store_verified_table,
)
from pgoutput.replica import (
    Owner,
    TablesAsOf,
    existing_tables,
    read_owner,
    replica_table,
    selected_tables,
    store_verified,
)
from pgoutput.values import base_types
from pgoutput.verification.comparable import check_columns
from pgoutput.verification.differences import FoundDifferences, RowDifference, find_differences
from pgoutput.verification.key_ranges import choose_ranges
from pgoutput.verification.replica_rows import ReplicaRows
from pgoutput.verification.source_rows import RowHash, SourceRows, Sums, Total, choose_hash
from pgoutput.verification.workspace import FinishedRange, TableProgress, Workspace
from pgoutput.wire import format_lsn, shown_text

SHOWN_ROWS: Final = 100
"""Largest number of differing rows of a table in a `TableVerdict`."""

_ATTEMPTS: Final = 5
"""Largest number of snapshots as of which a table is compared that is altered after each snapshot."""

_TICK: Final = 0.2
"""Seconds between two looks at the recording."""


class AwaitingRecording(Event, frozen=True, kw_only=True):
    """The comparison waits until the recorder has stored all transactions before the LSN of the snapshot."""

    lsn: str
    """LSN of the snapshot."""
    stored_lsn: str
    """LSN up to which the recording has all transactions."""


class TableVerdict(msgspec.Struct, frozen=True):
    """The result of comparing the Delta table of one relation with its source."""

    oid: int
    table: str
    """Name of the table, such as `public.orders`."""
    lsn: int
    """The tables were compared as of this LSN; after an interruption, some rows as of a later one."""
    rows: int
    """Number of rows in the source."""
    different_rows: int = 0
    """Number of rows that differ."""
    differences: tuple[RowDifference, ...] = ()
    """The first of the rows that differ, at most `SHOWN_ROWS`."""
    error: str = ""
    """Why the table could not be compared; empty if it was compared."""
    pending: int = 0
    """Number of recorded changes that the Delta table had not applied yet. The comparison has added them."""
    keys: Keys = None
    """Keys of the rows that differ, for `pgoutput.recorder.request_snapshot`. None if the table is equal or
    has no key, if more than `max_keys` rows differ, or if the keys do not identify the rows."""

    @property
    def is_equal(self) -> bool:
        """Whether the tables were compared, and are equal."""
        return not (self.different_rows or self.error)


def verify_tables(
    recording: PathOrUri,
    target: PathOrUri,
    dsn: str,
    *,
    tables: Collection[str] = (),
    rate: float | None = None,
    max_keys: int = 0,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Iterator[TableVerdict]:
    """Compare the Delta tables of a replica with the published tables of its source, as of one LSN.

    The comparison waits until the recording has all transactions before the LSN. If no recorder is running,
    the function records until then itself. Transactions that the replica has not applied yet, or has applied
    beyond the LSN, make no difference. If the comparison is interrupted, the next one of the same target
    continues it. Equal tables get the property `pgoutput.verified_through`, which tables that differ lose.
    `pgoutput.recording.verified_tables` returns the same.

    Args:
        recording: Path or URL of the recording.
        target: The folder that holds the replica.
        dsn: Connection string of the source. The role needs the attribute REPLICATION.
        tables: Names of the tables to compare, such as `public.orders`; if empty, all published tables that
            the target follows.
        rate: Number of rows to read from the source per second; None for no limit.
        max_keys: Largest number of differing rows of a table whose keys a verdict has; 0 for no keys.
        on_event: Called with `Waiting` and `AwaitingRecording` events, possibly from another thread.

    Yields:
        One verdict for each table.

    Raises:
        RecordingError: The recording cannot be read, or cannot be continued.
        ReplicaError: The target is not a replica of the recording in a local folder.
        ReplicationError: The server is not the source of the recording, or refuses a statement.
        ConnectionLost: No recorder is running on this machine, and another client uses the slot.
    """
    recorded, place = Recording(recording), locate(target)
    owner = _check_owner(place, recorded)
    with Workspace(place) as workspace:
        with Connection(dsn) as connection:
            pinned = connection.pinned_dsn
        source = _check_server(pinned, recorded)
        wanted: Collection[int] | None = None
        for attempts_left in reversed(range(_ATTEMPTS)):
            altered: list[int] = []
            with export_snapshot(pinned, on_event, lambda: False) as snapshot:
                with snapshot.connect(lambda: False) as connection:
                    row_hash = choose_hash(connection)
                    published = published_tables(connection, source.publications, binary=False)
                selected = _select(published, tables, place) if wanted is None else published
                _await_recording(recording, source, pinned, snapshot.lsn, on_event)
                recorded.refresh()
                compared = [one for one in selected if wanted is None or one.relation.oid in wanted]
                oids = [one.relation.oid for one in compared]
                with TablesAsOf(recorded, place, owner, oids, snapshot.lsn) as as_of:
                    comparison = _Comparison(
                        recording, source, place, as_of, pinned, snapshot, workspace, row_hash, rate, max_keys
                    )
                    for table in compared:
                        try:
                            yield comparison.compare(table)
                        except _Altered as error:
                            oid = table.relation.oid
                            altered.append(oid)
                            if not attempts_left:
                                yield TableVerdict(oid, table.name, snapshot.lsn, 0, error=str(error))
                if wanted is None and not tables:
                    yield from _left_over(place, published, snapshot.lsn)
            if not altered:
                break
            wanted = altered
        workspace.remove()


def _check_owner(target: Location, recording: Recording) -> Owner:
    owner = read_owner(target.place)
    if owner is None or owner.recording != recording.identity or owner.output == "a feed":
        raise ReplicaError(f"{target}: no replica of the recording in {recording.location} is here")
    return owner


def _check_server(dsn: str, recording: Recording) -> Source:
    """Return the source of the last segment; check that the server is this source."""
    assert recording.last is not None
    source = recording.last.source
    with Connection(dsn, replication=True) as connection:
        server = identify(connection)
    if (server.system_identifier, server.database) != (source.system_identifier, source.database):
        raise ReplicationError(
            f"the recording is of the database {source.database} of the system {source.system_identifier}, "
            f"and the connection is to {server.database} of {server.system_identifier}"
        )
    return source


def _select(
    published: list[PublishedTable], tables: Collection[str], target: Location
) -> list[PublishedTable]:
    """Return the tables to compare: those with the given names, or all that the target follows."""
    if unknown := sorted({*tables} - {one.name for one in published}):
        raise RecordingError(f"no publication of the recording has the table {', '.join(unknown)}")
    if (selected := selected_tables(target)) is not None:
        existing = existing_tables(target)
        published = [one for one in published if one.name in selected or one.relation.oid in existing]
    if skipped := sorted({*tables} - {one.name for one in published}):
        raise ReplicaError(f"{target}: the target does not follow the table {', '.join(skipped)}")
    return [one for one in published if not tables or one.name in tables]


def _left_over(target: Location, published: Iterable[PublishedTable], lsn: int) -> Iterator[TableVerdict]:
    """Yield a verdict for each table that cannot be compared: not published, and not known as dropped."""
    oids = {one.relation.oid for one in published}
    for oid in sorted(existing_tables(target) - oids):
        table = replica_table(target.place, oid)
        if table is not None and table.dropped is None:
            name = f"{table.namespace}.{table.name}"
            text = "the publications do not have it any more, so its rows are those of an earlier time"
            yield TableVerdict(table.oid, name, lsn, 0, error=text)


def _await_recording(
    folder: PathOrUri, source: Source, dsn: str, lsn: int, report: Callable[[Event], None]
) -> None:
    """Wait until a recording has all transactions with a commit LSN below `lsn`.

    If no recorder is running, record them.
    """
    is_reported = False
    while (stored := stored_lsn(folder)) < lsn:
        if not is_reported:
            is_reported = True
            report(AwaitingRecording(lsn=format_lsn(lsn), stored_lsn=format_lsn(stored)))
        if is_recording(folder):
            time.sleep(_TICK)
        else:
            options = RecorderOptions(
                proto_version=source.proto_version,
                streaming=source.streaming,
                two_phase=source.slot_two_phase,
                binary=source.options.get("binary") == "on",
                messages=source.options.get("messages") == "on",
                origin="none" if source.options.get("origin") == "none" else None,
            )
            recorder = Recorder(
                dsn,
                source.slot,
                source.publications,
                os.fspath(folder),
                options=options,
                retry_for=0,
                on_event=report,
            )
            recorder.run(until=lsn)


class _Comparison(msgspec.Struct):
    """The comparison of several tables as of one LSN."""

    folder: PathOrUri
    source: Source
    target: Location
    as_of: TablesAsOf
    dsn: str
    snapshot: ExportedSnapshot
    workspace: Workspace
    row_hash: RowHash
    rate: float | None
    max_keys: int

    def compare(self, table: PublishedTable) -> TableVerdict:
        """Compare a table, and store the verdict in its Delta table.

        Raises:
            _Altered: The table was altered after the snapshot.
        """
        relation = base_types(table.relation, {one.oid: one for one in table.types})
        now = datetime.now(UTC).isoformat(" ", "seconds")
        oid, lsn = relation.oid, self.snapshot.lsn
        try:
            progress, found = self._compare(table, relation, now)
        except (ReplicaError, RecordingError) as error:
            return TableVerdict(oid, table.name, lsn, 0, error=one_line(error))
        rows = sum(one.rows for one in progress.finished.values())
        if progress.is_finished:
            lsn = min(one.lsn for one in progress.finished.values())
        verified = Verified(lsn, now, rows)
        store_verified(self.target, oid, verified if progress.is_finished else None)
        listed = VerifiedTable(os.path.abspath(self.target.path), oid, table.name, verified)
        with suppress(OSError, RecordingError):  # the user may not write to the recording
            store_verified_table(self.folder, listed, equal=progress.is_finished)
        keys = found.keys or None
        return TableVerdict(
            oid,
            table.name,
            lsn,
            rows + found.rows,
            found.count,
            found.shown,
            pending=self.as_of.pending(oid),
            keys=keys,
        )

    def _compare(
        self, table: PublishedTable, relation: Relation, now: str
    ) -> tuple[TableProgress, FoundDifferences]:
        """Return the equal key ranges of a table, and the differences in the others."""
        columns = tuple((shown_text(one.name), one.type_oid, one.type_modifier) for one in relation.columns)
        progress = self.workspace.progress(relation.oid, columns)
        if progress is not None and progress.is_finished:
            return progress, FoundDifferences(0, 0, ())
        stop = Flag()
        with self.snapshot.connect(stop.is_set) as connection, self.workspace.temporary("table") as folder:
            self._lock(connection, table)
            binary = self.source.options.get("binary") == "on"
            check_columns(relation, binary=binary, server_version=connection.server_version)
            if progress is None:
                progress = TableProgress(columns, choose_ranges(connection, table, self.rate))
            flags = [bool(one.flags & ColumnFlag.KEY) for one in relation.columns]
            key = [] if all(flags) else [at for at, is_key in enumerate(flags) if is_key]
            source = SourceRows(connection, table, progress.ranges, self.row_hash, key)
            as_of = self.as_of.table(relation, folder)
            replica = ReplicaRows(as_of, progress.ranges, self.row_hash.function, key)
            different: dict[int, Sums] = {}
            for number, total, sums in self._totals(source, replica, progress, stop):
                if total == tuple(sums.sum(axis=1).tolist()):
                    progress.finished[number] = FinishedRange(self.snapshot.lsn, now, total[0])
                    self.workspace.store(relation.oid, progress)
                else:
                    different[number] = sums
            names = [name for name, _, _ in columns]
            identity = key_columns(relation) if table.has_key and not binary else []
            return progress, find_differences(
                source,
                replica,
                different,
                names,
                key,
                SHOWN_ROWS,
                identity,
                self.max_keys if identity else 0,
            )

    def _lock(self, connection: Connection, table: PublishedTable) -> None:
        """Lock a table against changes of its columns.

        Raises:
            _Altered: The table was altered after the snapshot.
        """
        oid = table.relation.oid
        try:
            connection.query(table.lock)
            with Connection(self.dsn) as latest:
                names = self.source.publications
                is_same = published_tables(latest, names, binary=False, oid=oid) == [table]
        except ReplicationError as error:
            raise _Altered(str(error)) from None
        if not is_same:
            raise _Altered("the table was altered again and again while it was compared: verify it again")

    def _totals(
        self, source: SourceRows, replica: ReplicaRows, progress: TableProgress, stop: Flag
    ) -> Iterator[tuple[int, Total, Sums]]:
        """Yield number, total in the source, and sums in the replica, of each key range that is not finished.

        The server computes its totals while the replica is read.
        """
        numbers = [number for number in range(len(progress.ranges)) if number not in progress.finished]
        with ThreadPoolExecutor(1, "pgoutput-source") as pool:
            try:
                futures = [pool.submit(self._limited_total, source, number, stop) for number in numbers]
                sums = replica.sums()
                for number, future in zip(numbers, futures, strict=True):
                    yield number, future.result(), sums[number]
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _limited_total(self, source: SourceRows, number: int, stop: Flag) -> Total:
        """Return the total of a key range, and wait if the rows were read faster than the rate."""
        begin = time.monotonic()
        total = source.total(number)
        if self.rate is not None:
            stop.wait(max(0.0, total[0] / self.rate - (time.monotonic() - begin)))
        return total


class _Altered(Exception):
    """A table was altered after the snapshot, and cannot be compared as of the snapshot."""
