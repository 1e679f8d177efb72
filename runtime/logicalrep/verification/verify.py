"""Compare the Delta tables of a replica with the tables of the source, as of one LSN."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event as Flag
from typing import Final

import msgspec

from logicalrep._text import one_line
from logicalrep.errors import RecordingError, ReplicaError, ReplicationError
from logicalrep.messages import ColumnFlag, Relation
from logicalrep.recorder import (
    Connection,
    Event,
    ExportedSnapshot,
    Keys,
    PermissionDenied,
    PublishedTable,
    Recorder,
    RecorderOptions,
    check_place,
    check_privileges,
    export_snapshot,
    identify,
    is_recording,
    key_columns,
    published_tables,
    stored_lsn,
)
from logicalrep.recording import (
    Location,
    PathOrUri,
    Recording,
    Source,
    Verified,
    VerifiedTable,
    locate,
    store_verified_tables,
)
from logicalrep.replica import (
    THREADS,
    Owner,
    TablesAsOf,
    existing_tables,
    read_owner,
    replica_table,
    restore_registry,
    selected_tables,
    store_verified,
)
from logicalrep.values import base_types
from logicalrep.verification.comparable import check_columns
from logicalrep.verification.differences import FoundDifferences, RowDifference, find_differences
from logicalrep.verification.key_ranges import choose_ranges
from logicalrep.verification.replica_rows import ReplicaRows
from logicalrep.verification.source_rows import (
    RowHash,
    SourceRows,
    Sums,
    Total,
    choose_hash,
    table_sizes,
)
from logicalrep.verification.workspace import FinishedRange, TableProgress, Workspace
from logicalrep.wire import format_lsn, stored_name

SHOWN_ROWS: Final = 100
"""Largest number of differing rows of a table in a `TableVerdict`."""

_ATTEMPTS: Final = 5
"""Maximum number of snapshots to compare a table with, if the table is altered after each snapshot."""

_GROUP_TABLES: Final = 100
_GROUP_BYTES: Final = 64 << 20
"""Largest total size, in bytes, of tables that are locked and compared together. A larger table is compared
alone. `_GROUP_TABLES` is the largest number of these tables."""

_TICK: Final = 0.2
"""Time between two checks of how much the recorder has stored, in seconds."""


class AwaitingRecording(Event, frozen=True, kw_only=True):
    """The comparison waits until the recorder has stored all transactions before the LSN of the snapshot."""

    lsn: str
    """LSN of the snapshot."""
    stored_lsn: str
    """LSN up to which the recording has all transactions."""


class TableVerdict(msgspec.Struct, frozen=True):
    """The result of comparing the Delta table of one relation with the relation in the source."""

    oid: int
    table: str
    """Name of the table, such as `public.orders`."""
    lsn: int
    """The tables were compared as of this LSN; after an interruption, some rows as of a later LSN."""
    rows: int
    """Number of rows in the source."""
    different_rows: int = 0
    """Number of rows that differ, including those of one side only."""
    only_in_source: int = 0
    """Number of rows that only the source has. Without a key, a changed row is also one that only the replica
    has."""
    only_in_replica: int = 0
    """Number of rows that only the replica has."""
    differences: tuple[RowDifference, ...] = ()
    """The first of the rows that differ, at most `SHOWN_ROWS`."""
    error: str = ""
    """Why the table could not be compared; empty if it was compared."""
    pending: int = 0
    """Number of recorded changes that the Delta table had not applied yet. The comparison includes them."""
    keys: Keys = None
    """Keys of the rows that differ, for `logicalrep.recorder.request_snapshot`. None if the table is equal or
    has no key, if more than `max_keys` rows differ, or if the keys do not identify the rows."""
    not_compared: tuple[str, ...] = ()
    """Names of generated columns that are not published: the replica lacks them."""

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
    the function itself records until then. Transactions that the replica has not applied yet, or has applied
    beyond the LSN, make no difference. If the comparison is interrupted, the next one of this target
    continues it. The property `logicalrep.verified_through` is set for equal tables, and removed from tables
    that differ. `logicalrep.recording.verified_tables` returns the tables that were equal.

    Args:
        recording: Path or URL of the recording.
        target: The folder that holds the replica.
        dsn: Connection string of the source. The role needs the attribute REPLICATION.
        tables: Names of the tables to compare, such as `public.orders`; if empty, all published tables that
            the target follows.
        rate: Number of rows to read from the source per second; None for no limit.
        max_keys: A verdict has keys only if at most this number of rows differ; 0 for no keys.
        on_event: Called with `Waiting` and `AwaitingRecording` events, possibly from another thread.

    Yields:
        One verdict for each table.

    Raises:
        RecordingError: The recording cannot be read, or cannot be continued.
        ReplicaError: The target is not a replica of the recording.
        ReplicationError: The server is not the source of the recording, or refuses a statement.
        ConnectionLost: No recorder is running on this machine, and another client uses the slot.
    """
    recorded, place = Recording(recording), locate(target)
    owner = _check_owner(place, recorded)
    restore_registry(place, recorded.identity)
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
                    selected = (
                        _select(published, tables, place)
                        if wanted is None
                        else [one for one in published if one.relation.oid in wanted]
                    )
                    sizes = table_sizes(connection, selected)
                _await_recording(recording, source, pinned, snapshot.lsn, on_event)
                recorded.refresh()
                with TablesAsOf(recorded, place, owner, [*sizes], snapshot.lsn) as as_of:
                    comparison = _Comparison(
                        recording, source, place, as_of, pinned, snapshot, workspace, row_hash, rate, max_keys
                    )
                    # Lock tables one by one if they were altered during the last comparison, or if the
                    # rate of reading is limited: no table is then locked for long.
                    limit = 1 if wanted is not None or rate is not None else _GROUP_TABLES
                    for group in _groups(selected, sizes, limit):
                        verdicts, errors = comparison.compare(group, sizes)
                        yield from verdicts
                        altered += errors
                        if not attempts_left:
                            for table in group:
                                oid = table.relation.oid
                                if oid in errors:
                                    yield TableVerdict(oid, table.name, snapshot.lsn, 0, error=errors[oid])
                if wanted is None and not tables:
                    yield from _left_over(place, published, snapshot.lsn)
            if not altered:
                break
            wanted = altered


def _check_owner(target: Location, recording: Recording) -> Owner:
    owner = read_owner(target.place)
    if owner is None or owner.recording != recording.identity:
        raise ReplicaError(
            f"{target}: the target is not a replica of the recording {recording.location}. Give a target "
            "that `logicalrep replicate` writes from this recording"
        )
    return owner


def _check_server(dsn: str, recording: Recording) -> Source:
    """Return the `Source` of the recording's last segment, if `dsn` leads to the same server and database.

    Raises:
        ReplicationError: `dsn` leads to another server or database.
    """
    assert recording.last is not None
    source = recording.last.source
    with Connection(dsn, replication=True) as connection:
        server = identify(connection)
    if (server.system_identifier, server.database) != (source.system_identifier, source.database):
        raise ReplicationError(
            f"the recording is of the database {source.database} (system identifier "
            f"{source.system_identifier}), but the connection is to the database {server.database} (system "
            f"identifier {server.system_identifier}): correct the DSN"
        )
    return source


def _select(
    published: list[PublishedTable], tables: Collection[str], target: Location
) -> list[PublishedTable]:
    """Return the tables to compare: those with the given names, or all that the target follows."""
    if unknown := sorted({*tables} - {one.name for one in published}):
        raise RecordingError(
            f"no publication of the recording has the table {', '.join(unknown)}: give names of published "
            "tables, such as public.orders"
        )
    if (selected := selected_tables(target)) is not None:
        existing = existing_tables(target)
        published = [one for one in published if one.name in selected or one.relation.oid in existing]
    if skipped := sorted({*tables} - {one.name for one in published}):
        raise ReplicaError(
            f"{target}: the target does not follow the table {', '.join(skipped)}: add the table with "
            "`logicalrep replicate --table`, or leave it out"
        )
    return [one for one in published if not tables or one.name in tables]


def _groups(
    tables: Iterable[PublishedTable], sizes: Mapping[int, int], limit: int
) -> Iterator[list[PublishedTable]]:
    """Divide tables into groups of at most `limit` tables and `_GROUP_BYTES`.

    Args:
        tables: The tables.
        sizes: Sizes of the tables, in bytes, by OID.
        limit: Largest number of tables in a group.
    """
    group: list[PublishedTable] = []
    room = 0
    for table in tables:
        size = sizes[table.relation.oid]
        if group and (size > room or len(group) == limit):
            yield group
            group = []
        room = (room if group else _GROUP_BYTES) - size
        group.append(table)
    if group:
        yield group


def _left_over(target: Location, published: Iterable[PublishedTable], lsn: int) -> Iterator[TableVerdict]:
    """Yield a verdict with an error for each table of a replica that no publication contains any more.

    There is no verdict for a table that is known to be dropped.

    Args:
        target: The folder that holds the replica.
        published: The published tables.
        lsn: LSN of the verdicts.
    """
    oids = {one.relation.oid for one in published}
    for oid in sorted(existing_tables(target) - oids):
        table = replica_table(target.place, oid)
        if table is not None and table.dropped is None:
            name = f"{table.namespace}.{table.name}"
            text = "the publications do not contain the table any more, so its rows are out of date"
            yield TableVerdict(table.oid, name, lsn, 0, error=text)


def _await_recording(
    folder: PathOrUri, source: Source, dsn: str, lsn: int, report: Callable[[Event], None]
) -> None:
    """Wait until a recording has all transactions with a commit LSN below `lsn`.

    If no recorder is running, record the transactions in this process.

    Raises:
        RecordingError: No recorder is running, and the recording may be a copy of another recording.
    """
    is_reported = False
    while (stored := stored_lsn(folder)) < lsn:
        if not is_reported:
            is_reported = True
            report(AwaitingRecording(lsn=format_lsn(lsn), stored_lsn=format_lsn(stored)))
        if is_recording(folder):
            time.sleep(_TICK)
        else:
            check_place(folder)
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


class _Pair(msgspec.Struct):
    """A table of the source, its replica, and the results of comparing them."""

    table: PublishedTable
    relation: Relation
    """Description of the table, with base types in place of domains."""
    time: str
    """Time of the comparison in UTC."""
    progress: TableProgress
    key: list[int] = []
    """Indices of the columns that identify a row; empty if only the whole row does."""
    identity: list[int] = []
    """Indices of the columns whose values `TableVerdict.keys` contains; empty for no keys."""
    source: SourceRows | None = None
    """The rows of the source; None if the table is not compared."""
    replica: ReplicaRows | None = None
    sums: list[Sums] = []
    """The sums of the replica's buckets, by key range."""
    found: FoundDifferences = FoundDifferences(0, 0, 0, 0, ())
    may_differ: str = ""
    """Value of the table property `logicalrep.may_differ` of the replica's table when it was read."""
    error: str = ""
    """Why the tables cannot be compared."""

    def read(self) -> None:
        """Read the replica; store in `sums` the row counts and hash sums of the buckets of its key ranges.

        A bucket consists of the rows of a key range whose hashes have the same lowest bits.
        """
        with self.errors():
            self.sums = [] if self.replica is None else self.replica.sums()

    def total(self, number: int) -> Total:
        """Return the number of rows in a key range of the replica, and the sum of their hashes."""
        rows, hashes = self.sums[number].sum(axis=1).tolist()
        return rows, hashes

    def reopen_changed(self) -> list[int]:
        """Mark finished key ranges as unfinished if their rows in the replica have changed.

        Rows have changed if their number or the sum of their hashes differs from that of the finished range.
        Return the numbers of these key ranges.
        """
        finished = self.progress.finished
        changed = [number for number, one in finished.items() if one.total != self.total(number)]
        for number in changed:
            del finished[number]
        return changed

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Context manager that catches an error of the replica or recording, and keeps it as `error`."""
        try:
            yield
        except (ReplicaError, RecordingError) as error:
            self.error = one_line(error)


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

    def compare(
        self, tables: Sequence[PublishedTable], sizes: Mapping[int, int]
    ) -> tuple[list[TableVerdict], dict[int, str]]:
        """Compare tables, and store the verdicts in the Delta tables.

        One thread queries the row count and hash sum of each key range from the server, while other threads
        read the replica.

        Args:
            tables: The tables.
            sizes: Sizes of the tables, in bytes, by OID.

        Returns:
            The verdicts; and, by OID, the errors of tables that were not compared, because they were altered
            after the snapshot or could not be locked.
        """
        stop = Flag()
        with (
            self.workspace.temporary() as folder,
            self.snapshot.connect(stop.is_set) as connection,
            _threads(1, "logicalrep-source", stop) as source,
            _threads(THREADS, "logicalrep-replica", stop) as replica,
        ):
            denied = _denied(connection, tables)
            tables = [one for one in tables if one.relation.oid not in denied]
            altered = self._lock(connection, tables) if tables else {}
            tables = [one for one in tables if one.relation.oid not in altered]
            now = datetime.now(UTC).isoformat(" ", "seconds")
            pairs = [self._pair(connection, table, sizes, folder, now) for table in tables]
            totals = [self._totals(source, one, one.progress.unfinished, stop) for one in pairs]
            # The rows of a single table are read in this thread, so that Ctrl-C ends the reading at once.
            read = map if len(pairs) == 1 else replica.map
            for one, found, _ in zip(pairs, totals, read(_Pair.read, pairs), strict=True):
                self._compare(source, one, found, stop)
            refused = [
                TableVerdict(oid, name, self.snapshot.lsn, 0, error=error)
                for oid, (name, error) in denied.items()
            ]
            return [*refused, *self._store(replica, pairs)], altered

    def _pair(
        self,
        connection: Connection,
        table: PublishedTable,
        sizes: Mapping[int, int],
        folder: Path,
        now: str,
    ) -> _Pair:
        """Return a table of the source and its replica, ready to be compared.

        Args:
            connection: Connection to the source.
            table: The table.
            sizes: Sizes of the tables, in bytes, by OID.
            folder: Local folder for copies of the replica's table.
            now: Time of the comparison in UTC.
        """
        relation = base_types(table.relation, {one.oid: one for one in table.types})
        columns = tuple((stored_name(one.name), one.type_oid, one.type_modifier) for one in relation.columns)
        progress = self.workspace.progress(relation.oid, columns)
        if progress is None:
            ranges = choose_ranges(connection, table, sizes[relation.oid], self.rate)
            progress = TableProgress(columns, ranges)
        pair = _Pair(table, relation, now, progress)
        flags = [bool(one.flags & ColumnFlag.KEY) for one in relation.columns]
        pair.key = [] if all(flags) else [at for at, is_key in enumerate(flags) if is_key]
        binary = self.source.options.get("binary") == "on"
        pair.identity = key_columns(relation) if table.has_key and not binary else []
        with pair.errors():
            check_columns(relation.columns, binary=binary, server_version=connection.server_version)
            as_of = self.as_of.table(relation, folder)
            pair.may_differ = as_of.may_differ
            pair.replica = ReplicaRows(as_of, progress.ranges, self.row_hash.function, pair.key)
            pair.source = SourceRows(connection, table, progress.ranges, self.row_hash, pair.key)
        return pair

    def _lock(self, connection: Connection, tables: Sequence[PublishedTable]) -> dict[int, str]:
        """Lock tables against ALTER TABLE. Return, by OID, an error for each table that must not be compared.

        A table that was altered after the snapshot has an error. If the server refuses to lock one table,
        each of `tables` has the server's error.
        """
        oids = [one.relation.oid for one in tables]
        try:
            for table in tables:  # waiting for a lock while holding others could deadlock with ALTER TABLE
                connection.query(table.lock if len(tables) == 1 else f"{table.lock} NOWAIT")
            with Connection(self.dsn) as latest:
                found = published_tables(latest, self.source.publications, binary=False, oids=oids)
        except ReplicationError as error:
            return dict.fromkeys(oids, str(error))
        same = {one.relation.oid: one for one in found}
        text = "the table was altered repeatedly during the comparison: run `logicalrep verify` again later"
        return {oid: text for oid, one in zip(oids, tables, strict=True) if same.get(oid) != one}

    def _totals(
        self, pool: ThreadPoolExecutor, pair: _Pair, numbers: Iterable[int], stop: Flag
    ) -> dict[int, Future[Total]]:
        """Query row count and hash sum of key ranges in the source; return futures by key range number."""
        if (source := pair.source) is None:
            return {}
        return {number: pool.submit(self._limited_total, source, number, stop) for number in numbers}

    def _compare(
        self, pool: ThreadPoolExecutor, pair: _Pair, totals: Mapping[int, Future[Total]], stop: Flag
    ) -> None:
        """Store which key ranges of a table are equal, and find the differences in the other key ranges.

        Args:
            pool: The thread that uses the connection to the source.
            pair: The table and its replica, which was read.
            totals: Row count and hash sum of each unfinished key range in the source, by its number.
            stop: Set after an exception. Queries of changed key ranges then do not wait for `rate`.
        """
        if pair.error or pair.source is None or pair.replica is None:
            return
        changed = self._totals(pool, pair, pair.reopen_changed(), stop)
        different: dict[int, Sums] = {}
        for number, future in (*totals.items(), *changed.items()):
            total, sums = future.result(), pair.sums[number]
            if total == pair.total(number):
                pair.progress.finished[number] = FinishedRange(self.snapshot.lsn, pair.time, total)
                self.workspace.store(pair.relation.oid, pair.progress)
            else:
                different[number] = sums
        if different:
            found = pool.submit(
                find_differences,
                pair.source,
                pair.replica,
                different,
                [name for name, _, _ in pair.progress.columns],
                pair.key,
                SHOWN_ROWS,
                pair.identity,
                self.max_keys if pair.identity else 0,
            )
            with pair.errors():
                pair.found = found.result()

    def _store(self, pool: ThreadPoolExecutor, pairs: Sequence[_Pair]) -> list[TableVerdict]:
        """Store the results in the Delta tables and in the recording; return the verdicts."""
        path = os.path.abspath(self.target.path) if self.target.is_local else str(self.target)
        compared = [one for one in pairs if not one.error]
        verified = [self._verified(one) for one in compared]
        oids = [one.relation.oid for one in compared]
        marks = [one.may_differ for one in compared]
        [*pool.map(partial(store_verified, self.target), oids, verified, marks)]
        equal = [
            VerifiedTable(path, one.relation.oid, one.table.name, result)
            for one, result in zip(compared, verified, strict=True)
            if result is not None
        ]
        with suppress(OSError, RecordingError):  # the user may lack permission to write to the recording
            store_verified_tables(self.folder, path, equal, oids)
        return [self._verdict(one) for one in pairs]

    def _verified(self, pair: _Pair) -> Verified | None:
        """Return the `Verified` result of a table if all its key ranges are equal, else None."""
        finished = pair.progress.finished.values()
        if not pair.progress.is_finished:
            return None
        return Verified(min(one.lsn for one in finished), pair.time, pair.progress.rows)

    def _verdict(self, pair: _Pair) -> TableVerdict:
        oid, lsn = pair.relation.oid, self.snapshot.lsn
        if pair.error:
            return TableVerdict(oid, pair.table.name, lsn, 0, error=pair.error)
        verified, found = self._verified(pair), pair.found
        return TableVerdict(
            oid,
            pair.table.name,
            lsn if verified is None else verified.lsn,
            pair.progress.rows + found.rows,
            found.count,
            found.only_in_source,
            found.only_in_replica,
            found.shown,
            pending=self.as_of.pending(oid),
            keys=found.keys or None,
            not_compared=pair.table.unpublished_generated,
        )

    def _limited_total(self, source: SourceRows, number: int, stop: Flag) -> Total:
        """Return the number of rows in a key range of the source, and the sum of their hashes.

        If the query read more than `rate` rows per second, wait after the query.

        Args:
            source: The rows of the source.
            number: Number of the key range.
            stop: Ends the wait when it is set.
        """
        begin = time.monotonic()
        total = source.total(number)
        if self.rate is not None:
            stop.wait(max(0.0, total[0] / self.rate - (time.monotonic() - begin)))
        return total


def _denied(connection: Connection, tables: Sequence[PublishedTable]) -> dict[int, tuple[str, str]]:
    """Return, by OID, the name of each table that the connection's role may not read, and the reason."""
    try:
        check_privileges(connection, [one.relation.oid for one in tables])
    except PermissionDenied as error:
        if len(tables) == 1:
            return {tables[0].relation.oid: (tables[0].name, str(error))}
        return {oid: why for one in tables for oid, why in _denied(connection, [one]).items()}
    return {}


@contextmanager
def _threads(count: int, name: str, stop: Flag) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool; after an exception, set `stop` and cancel the calls that have not begun."""
    with ThreadPoolExecutor(count, name) as pool:
        try:
            yield pool
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
