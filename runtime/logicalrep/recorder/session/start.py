"""The start of a session: checks that server, slot and folder match, and creates the slot of a new recording.

A mismatch raises an error before anything is stored or acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from logicalrep.errors import ChangesLost, ConnectionLost, RecordingError, ReplicationError
from logicalrep.recorder.catalogs import (
    Catalog,
    CatalogChanges,
    check_publication_oids,
    compare_catalogs,
    may_read_any,
    read_catalog,
    tables_to_copy,
    tables_with_earlier_rows,
    tables_without_all_changes,
    with_undescribed,
)
from logicalrep.recorder.client import (
    Connection,
    Interrupted,
    PermissionDenied,
    Server,
    SlotWait,
    Timeline,
    UndefinedObject,
    check_fork,
    check_publications,
    check_slot,
    create_slot,
    drop_command,
    drop_slot,
    find_slot,
    read_timelines,
)
from logicalrep.recorder.events import Event
from logicalrep.recorder.options import Settings
from logicalrep.recorder.session.upgrade import continue_after_upgrade
from logicalrep.recorder.snapshots import CopyFolder, ExportedSnapshot, SchemaChanged, TableCopy
from logicalrep.recorder.storage import Folder, State, current_place
from logicalrep.recording import (
    Location,
    RecordedCommits,
    ResentCommitCheck,
    SessionStart,
    Source,
    read_beginning,
    read_metadata,
    recorded_commits,
)
from logicalrep.wire import format_lsn, parse_lsn

_SELECTING_FIELDS: Final = ("publications", "options", "slot_two_phase")
"""Fields of `Source` that decide which transactions the server sends."""


class PreparedSession(msgspec.Struct, frozen=True, kw_only=True):
    """All that a session needs to start: the checked server and slot, the catalogs, and where to begin."""

    server: Server
    """Server of the session."""
    source: Source
    """Server, slot, publications and options of the stream."""
    start: SessionStart
    """Where the session continues the recording."""
    begin_lsn: int
    """LSN at which the stream begins. Less than `start.lsn` if the server sends recorded transactions again,
    which are then compared with the recording."""
    acknowledged_lsn: int
    """LSN that may be acknowledged when the session starts, before anything is received."""
    resent: ResentCommitCheck
    """Checks whether the transactions that the server sends again are those that were recorded."""
    catalog: Catalog
    """The catalogs as read before the stream begins."""
    changes: CatalogChanges
    """Differences of `catalog` from the catalogs saved last."""
    timelines: tuple[Timeline, ...] | None
    """Timeline history of a standby's WAL; None for a primary."""


class SessionStarter:
    """Prepares a session that begins or continues a recording.

    Args:
        connection: Replication connection.
        server: Server of the connection.
        folder: Folder of the recording.
        settings: Settings of the recorder.
        report: Called with events, from several threads.
        stop: Returns whether to stop.
    """

    def __init__(
        self,
        connection: Connection,
        server: Server,
        folder: Folder,
        settings: Settings,
        report: Callable[[Event], None],
        stop: Callable[[], bool],
    ) -> None:
        self._connection = connection
        # The connection that streams must not cache the current catalogs: the changes that it decodes may be
        # older, and would be decoded with the wrong columns.
        self._catalog_connection = Connection(connection.pinned_dsn, stop=stop)
        self._server = server
        self._folder = folder
        self._settings = settings
        self._report = report
        self._stop = stop

    def prepare(self) -> PreparedSession:
        """Check server, slot and folder; create the slot of a new recording; return what the session needs.

        Can be called only once, because it closes the connection for queries of the catalogs.

        Raises:
            ConnectionLost: The slot is in use, the standby lags behind, or the connection was lost.
            ChangesLost: The server lacks changes that are in the recording, or that follow its end.
            ReplicationError: The server, the slot or a publication does not match the settings.
            RecordingError: The folder does not match slot, server or settings, or tables are incomplete in
                strict mode.
            Interrupted: The recorder was stopped.
            OSError: A file cannot be written.
        """
        connection, folder, server, settings = self._connection, self._folder, self._server, self._settings
        with self._catalog_connection:
            proto_version, options = settings.options.negotiate(server.major_version)
            self._check_publications()
            if settings.after_upgrade:
                continue_after_upgrade(
                    connection, self._catalog_connection, server, folder, settings, self._stop
                )
            state = folder.state_for(settings.slot, server.system_identifier, server.database)
            recovery, server_start = connection.query(
                "SELECT pg_is_in_recovery(), pg_postmaster_start_time()"
            )[0]
            in_recovery = recovery == "t"
            timelines = read_timelines(connection)
            state = self._check_history(state, timelines, server_start)
            catalog = self._read_catalog()
            if catalog.ddl_events:
                options["messages"] = "on"
            source = Source(
                recording=state.recording,
                system_identifier=server.system_identifier,
                server_version=server.version,
                database=server.database,
                slot=settings.slot,
                publications=settings.publications,
                publication_oids=tuple(one.oid for one in catalog.publications),
                timeline=timelines[-1].id,
                upgrades=state.upgrades,
                proto_version=proto_version,
                options=options,
                slot_two_phase=settings.options.two_phase,
            )
            confirmed_lsn, catalog = self._open_slot(state, source, catalog, in_recovery=in_recovery)
            place = current_place(folder.location)
            folder.update(timelines=timelines, server_start=server_start, place=place)
            catalog, changes = self._save_catalog_changes(catalog)
            if refused := settings.refused(folder.state.incomplete, catalog.tables):
                raise folder.incomplete_error(refused)
            start = folder.next_start(confirmed_lsn)
            resend_lsn, recorded = self._resent_commits(confirmed_lsn, source)
            resent = ResentCommitCheck(recorded)
            connection.may_skip_publications = start.lsn >= folder.state.publications_lsn
            return PreparedSession(
                server=server,
                source=source,
                start=start,
                begin_lsn=start.lsn if resent.settled else resend_lsn,
                acknowledged_lsn=max(start.lsn, confirmed_lsn) if resent.settled else confirmed_lsn,
                resent=resent,
                catalog=catalog,
                changes=changes,
                timelines=timelines if in_recovery else None,
            )

    def _check_history(self, state: State, timelines: tuple[Timeline, ...], server_start: str) -> State:
        """Check that the server has the recorded WAL; return the state of the recording.

        After a failover, the acknowledged LSN of the state is lowered to where the WAL histories diverge.
        """
        if not state.timelines or state.server_start == server_start:
            # The server was not restarted: even if it is a promoted standby, it has all that it sent before.
            return state
        fork = check_fork(state.timelines, timelines, self._folder.recorded_lsn(), str(self._folder.location))
        if fork is not None and state.acknowledged_lsn is not None and state.acknowledged_lsn > fork:
            # Lower the acknowledged LSN to the fork. This loses nothing: after the fork, the recording has no
            # transaction, and only LSNs of keepalives were acknowledged.
            state = msgspec.structs.replace(state, acknowledged_lsn=fork)
        return state

    def _open_slot(
        self, state: State, source: Source, catalog: Catalog, *, in_recovery: bool
    ) -> tuple[int, Catalog]:
        """Check the slot, or create the slot of a new recording.

        If the creation or the snapshot fails with an error that a retry cannot solve, neither the slot nor a
        partial snapshot is left.

        Returns:
            The slot's confirmed_flush_lsn, and the catalogs as of the slot's consistent point or later.
        """
        connection, folder, settings = self._connection, self._folder, self._settings
        if state.snapshot == "running":  # the slot may exist, but its LSN was not saved
            drop_slot(connection, settings.slot)
            recording = state.recording
            state = msgspec.structs.replace(folder.reset(state), recording=recording)
        slot = find_slot(connection, settings.slot)
        if state.acknowledged_lsn is None:
            if slot is None:
                if settings.snapshot:
                    return self._create_with_snapshot(state, source, catalog)
                return self._create_without_snapshot(state)
            if settings.snapshot:
                raise ReplicationError(
                    f"the slot {settings.slot} exists already, but a snapshot needs a new slot: drop the "
                    f"slot with {drop_command(settings.slot)}, or choose another slot name"
                )
        elif settings.snapshot and state.snapshot != "complete":
            raise RecordingError(
                f"{folder.location}: the recording began without a snapshot, which cannot be added later: "
                "leave out --snapshot, or record with another folder and another slot"
            )
        elif slot is None:
            raise ChangesLost(
                f"the slot {settings.slot} was dropped, so the changes after LSN "
                f"{format_lsn(folder.stored_lsn(state))} are lost: record anew in another folder"
            )
        assert slot is not None
        check_slot(slot, self._server, settings)
        self._check_wal_end(state, in_recovery=in_recovery)
        confirmed_lsn = parse_lsn(str(slot.confirmed_flush_lsn))
        if state.acknowledged_lsn is None:
            self._adopt(state, catalog, confirmed_lsn)
            return confirmed_lsn, catalog
        if confirmed_lsn > (stored_lsn := folder.stored_lsn(state)):
            raise ChangesLost(
                f"another client has read from the slot {settings.slot}, or has created it anew: the slot "
                f"was acknowledged up to LSN {format_lsn(confirmed_lsn)}, but the recording ends at LSN "
                f"{format_lsn(stored_lsn)}, and the changes between are lost: record anew in another folder"
            )
        folder.save(state)
        return confirmed_lsn, catalog

    def _adopt(self, state: State, catalog: Catalog, lsn: int) -> None:
        """Save the state of a recording that begins with an existing slot, without a snapshot.

        Args:
            state: State of the new recording.
            catalog: The catalogs, read after the slot's consistent point.
            lsn: LSN that the slot has confirmed.
        """
        self._folder.save_catalog(catalog)
        incomplete = tables_with_earlier_rows(catalog, self._catalog_connection)
        self._folder.save(
            msgspec.structs.replace(
                state, acknowledged_lsn=lsn, incomplete=incomplete, publications_lsn=catalog.lsn
            )
        )

    def _create_without_snapshot(self, state: State) -> tuple[int, Catalog]:
        if not self._settings.create_slot:
            raise ReplicationError(
                f"the slot {self._settings.slot} does not exist: create it with --create-slot, or correct "
                "the slot name"
            )
        lsn, _ = self._create_slot()
        try:
            catalog = self._read_catalog()
            self._adopt(state, catalog, lsn)
        except BaseException:  # an unused slot would retain WAL
            self._undo(state)
            raise
        return lsn, catalog

    def _create_with_snapshot(self, state: State, source: Source, before: Catalog) -> tuple[int, Catalog]:
        folder = self._folder
        folder.save_catalog(before)
        folder.save(msgspec.structs.replace(state, snapshot="running"))
        try:
            lsn, snapshot = self._create_slot()
        except ConnectionLost:  # the slot may exist nevertheless: the next start drops it
            raise
        except BaseException:
            folder.reset(state)
            raise
        try:
            folder.save(
                msgspec.structs.replace(
                    state, acknowledged_lsn=lsn, snapshot="complete", incomplete=tables_to_copy(before, lsn)
                )
            )
            # In a local folder, a complete copy is renamed to be the snapshot. A store cannot rename a
            # folder: there, the session copies the tables later, and inserts their rows into the stream.
            if not folder.is_local or (copied := self._copy_tables(source, lsn, str(snapshot))) is None:
                return lsn, self._read_catalog()  # the tables are copied while the stream is recorded
            if copied:  # empty if the publications have no tables yet
                folder.publish_snapshot()
            catalog = self._read_catalog()
            changes = compare_catalogs(before, catalog, self._catalog_connection, copied)
            folder.save_catalog(catalog)
            incomplete = (*tables_without_all_changes(before), *changes.incomplete)
            folder.update(
                incomplete=tuple({one.oid: one for one in incomplete}.values()), pending=changes.pending
            )
        except (ConnectionLost, Interrupted):  # the next session copies the rest
            raise
        except BaseException:  # an unused slot would retain WAL
            self._undo(state)
            raise
        return lsn, catalog

    def _copy_tables(self, source: Source, lsn: int, name: str) -> frozenset[int] | None:
        """Copy the published tables; return their OIDs, or None if some must be copied from a later snapshot.

        Args:
            source: Server, slot, publications and options of the stream.
            lsn: LSN of the snapshot.
            name: Name of the exported snapshot.
        """
        snapshot = ExportedSnapshot(self._connection.pinned_dsn, lsn, name)
        with CopyFolder(self._folder.copies) as copies:
            copy = TableCopy(snapshot, source, copies, self._settings)
            try:
                copied = copy.run(self._report, self._stop)
            except SchemaChanged:
                return None
            except PermissionDenied:
                if self._settings.strict or not may_read_any(self._catalog_connection, source.publications):
                    raise
                return None  # the stream is recorded, and the tables that cannot be copied are reported
            if copied is not None:
                copies.publish()
        return None if copied is None else frozenset(copied)

    def _create_slot(self) -> tuple[int, str | None]:
        connection = self._connection
        with SlotWait(connection.pinned_dsn, connection.backend_pid, self._report):
            return create_slot(connection, self._server, self._settings, self._stop)

    def _read_catalog(self) -> Catalog:
        names = self._settings.publications
        with suppress(UndefinedObject):
            catalog = read_catalog(self._catalog_connection, names)
            if {one.name for one in catalog.publications} == {*names}:
                return catalog
        self._check_publications()
        raise ConnectionLost("a publication was renamed or created while the catalogs were read")

    def _check_publications(self) -> None:
        is_recorded = self._folder.saved_state is not None
        check_publications(
            self._connection, self._server, self._settings.publications, is_recorded=is_recorded
        )

    def _undo(self, state: State) -> None:
        """Drop the new slot and reset the folder; if the connection is lost, the next start does both."""
        with suppress(ConnectionLost):
            drop_slot(self._connection, self._settings.slot)
            with suppress(RecordingError):  # the folder was moved or removed
                self._folder.reset(state)

    def _check_wal_end(self, state: State, *, in_recovery: bool) -> None:
        """Raise an error if the server's WAL ends before the end of the recording."""
        stored_lsn, flush_lsn = self._folder.stored_lsn(state), self._server.flush_lsn
        if flush_lsn >= stored_lsn:
            return
        ends = f"ends at LSN {format_lsn(flush_lsn)}, before the recording's end at {format_lsn(stored_lsn)}"
        if in_recovery:
            raise ConnectionLost(f"the WAL of the standby {ends}: wait until the standby has replayed it")
        raise ChangesLost(
            f"the WAL of the server {ends}: the server was restored from a backup, or is another server: "
            "correct the DSN, or record anew in another folder"
        )

    def _save_catalog_changes(self, catalog: Catalog) -> tuple[Catalog, CatalogChanges]:
        """Compare `catalog` with the catalogs saved last; save and return `catalog` and the differences."""
        folder, settings = self._folder, self._settings
        before = folder.saved_catalog
        if before is None:
            raise RecordingError(
                f"{folder.location}: _published.json is missing: put it back, or record anew in another "
                "folder"
            )
        check_publication_oids(before, catalog)
        changes = compare_catalogs(before, catalog, self._catalog_connection)
        if not {*settings.publications} <= {one.name for one in before.publications}:
            folder.update(publications_lsn=catalog.lsn)
        folder.save_changes(catalog := with_undescribed(before, catalog), changes)
        return catalog, changes

    def _resent_commits(self, confirmed_lsn: int, source: Source) -> tuple[int, RecordedCommits]:
        """Return the LSN at which to begin the stream, and the recorded commits that the server sends again.

        Commits that were recorded with other options or publications than those of `source`, and pruned
        commits, cannot be compared with the stream. Only commits after the last such commit are returned.
        """
        segments: list[Location] = []
        after_lsn, is_partial = confirmed_lsn, False
        for segment in self._folder.segments():
            metadata = read_metadata(segment)
            if metadata.end_lsn <= confirmed_lsn:
                break
            if metadata.kind == "snapshot":  # the recorder made it: the server has not sent its commits
                continue
            if any(getattr(metadata.source, name) != getattr(source, name) for name in _SELECTING_FIELDS):
                after_lsn, is_partial = metadata.end_lsn, True
                break
            segments.insert(0, segment)
        else:
            if (beginning := read_beginning(self._folder.location).lsn) > confirmed_lsn:
                after_lsn, is_partial = beginning, True
        recorded = recorded_commits(segments, after_lsn)
        if is_partial and len(recorded):
            return int(recorded["lsn"][0]), recorded
        return confirmed_lsn, recorded
