"""What happens before a stream begins: server, slot and folder are seen to fit together, or are made.

Whatever does not fit is an error before anything is stored or acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from pgoutput.errors import ConnectionLost, RecordingError, ReplicationError
from pgoutput.recorder import server as servers
from pgoutput.recorder.alterations import Difference, check_identity, compare, without_snapshot
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.events import Event, SnapshotKept
from pgoutput.recorder.folder import Folder, State
from pgoutput.recorder.options import RecorderOptions
from pgoutput.recorder.publications import Published, look
from pgoutput.recorder.server import Server
from pgoutput.recorder.snapshot import SchemaChanged, TableCopy
from pgoutput.recorder.timelines import Timeline, check_fork, read_timelines
from pgoutput.recorder.waiting import SlotWait
from pgoutput.recording import (
    IncompleteTable,
    RecordedCommits,
    ResentCommitCheck,
    SessionStart,
    Source,
    list_segments,
    read_metadata,
    recorded_commits,
)
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, format_lsn, parse_lsn

_SNAPSHOT_ATTEMPTS: Final = 5

_DECIDES_WHAT_COMES: Final = ("publications", "options", "slot_two_phase")
"""Fields of `Source`: with others, a server sends other transactions."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be recorded, and how: the arguments of `Recorder`."""

    slot: str
    publications: tuple[str, ...]
    options: RecorderOptions
    create_slot: bool
    failover: bool
    snapshot: bool
    strict: bool
    segment_bytes: int


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that can begin."""

    server: Server
    source: Source
    start: SessionStart
    begin_lsn: int
    """Where the server is asked to begin: at `start.lsn`, or before it to compare what it sends again."""
    acknowledged_lsn: int
    resent: ResentCommitCheck
    published: Published
    timelines: tuple[Timeline, ...]
    in_recovery: bool
    """Whether the server is a standby."""


class Opening:
    """Makes sure that a stream continues a recording, or begins one; a context manager.

    Args:
        connection: For replication.
        server: What it leads to.
        folder: Where the recording is, or will be.
        request: What is to be recorded.
        tell: Is told what happens; from several threads.
        stop: Says when to stop.
    """

    def __init__(
        self,
        connection: Connection,
        server: Server,
        folder: Folder,
        request: Request,
        tell: Callable[[Event], None],
        stop: Callable[[], bool],
    ) -> None:
        self._connection = connection
        # The caches of a connection that streams must not know catalogs as they are now: what it decodes may
        # be older, and would be read with the wrong columns.
        self._catalogs = Connection(connection.pinned_dsn, stop=stop)
        self._server = server
        self._folder = folder
        self._request = request
        self._tell = tell
        self._stop = stop

    def __enter__(self) -> Opening:
        return self

    def __exit__(self, *exception: object) -> None:
        self._catalogs.close()

    def open(self) -> Opened:
        """Check, or create, everything.

        Raises:
            ReplicationError: The server, the slot or a publication does not fit. ConnectionLost if it may.
            RecordingError: The folder does not fit, or tables are incomplete and `strict` was asked for.
            Interrupted: It was stopped.
            OSError: The disk failed.
        """
        connection, server, request = self._connection, self._server, self._request
        proto_version, options = request.options.negotiate(server.major_version)
        servers.check_publications(connection, server, request.publications)
        state = self._folder.claim(request.slot, server.system_identifier, server.database)
        (recovery, server_start) = connection.query("SELECT pg_is_in_recovery(), pg_postmaster_start_time()")[
            0
        ]
        timelines = read_timelines(connection)
        state = self._check_history(state, timelines, str(server_start))
        before = look(self._catalogs, request.publications)
        source = Source(
            recording=state.recording,
            system_identifier=server.system_identifier,
            server_version=server.version,
            database=server.database,
            slot=request.slot,
            publications=request.publications,
            publication_oids=tuple(one.oid for one in before.publications),
            timeline=timelines[-1].id,
            proto_version=proto_version,
            options=options,
            slot_two_phase=request.options.two_phase,
        )
        confirmed_lsn = self._position(state, source, before, in_recovery=recovery == "t")
        self._folder.update(timelines=timelines, server_start=str(server_start))
        published = self._compare()
        if request.strict:
            self._refuse_incomplete()
        start = self._folder.start(confirmed_lsn)
        begin_lsn, recorded = self._recorded_since(confirmed_lsn, source)
        resent = ResentCommitCheck(recorded)
        again = not resent.settled
        return Opened(
            server=server,
            source=source,
            start=start,
            begin_lsn=begin_lsn if again else start.lsn,
            acknowledged_lsn=confirmed_lsn if again else max(start.lsn, confirmed_lsn),
            resent=resent,
            published=published,
            timelines=timelines,
            in_recovery=recovery == "t",
        )

    def _check_history(self, state: State, timelines: tuple[Timeline, ...], server_start: str) -> State:
        """See that the server has the WAL that was recorded."""
        if not state.timelines or state.server_start == server_start:
            # A standby that was promoted since is the same server still: what it sent before, it has.
            return state
        fork = check_fork(state.timelines, timelines, self._folder.recorded_lsn(), str(self._folder.path))
        if fork is not None and state.acknowledged_lsn is not None and state.acknowledged_lsn > fork:
            # Only positions without changes were acknowledged behind the fork.
            state = msgspec.structs.replace(state, acknowledged_lsn=fork)
        return state

    # The slot

    def _position(self, state: State, source: Source, before: Published, *, in_recovery: bool) -> int:
        """Where the slot stands. A slot that a new recording lacks is created, and the snapshot made."""
        connection, folder, request, server = self._connection, self._folder, self._request, self._server
        if state.snapshot == "running":  # but it was not finished, and the slot does not fit to a new one
            servers.drop_slot(connection, request.slot)
            recording = state.recording
            state = msgspec.structs.replace(folder.forget(state), recording=recording)
        slot = servers.find_slot(connection, request.slot)
        if state.acknowledged_lsn is None:
            if slot is None:
                return self._begin(state, source, before)
            if request.snapshot:
                raise ReplicationError(
                    f"the slot {request.slot} is there already, and a snapshot needs a new one: drop it with "
                    f"{servers.drop_command(request.slot)}, or choose another name"
                )
        elif request.snapshot and state.snapshot != "complete":
            raise ReplicationError(
                f"{folder.path}: the recording has begun without a snapshot: "
                "use another folder and another slot"
            )
        elif slot is None:
            raise ReplicationError(
                f"the slot {request.slot} is gone, and with it what came after "
                f"{format_lsn(folder.stored_lsn(state))}: record anew in another folder"
            )
        assert slot is not None
        servers.check_slot(
            slot, request.slot, server, two_phase=request.options.two_phase, failover=request.failover
        )
        self._check_end(state, in_recovery=in_recovery)
        confirmed_lsn = parse_lsn(str(slot.confirmed_flush_lsn))
        if state.acknowledged_lsn is None:
            self._adopt(state, before, confirmed_lsn)
        elif confirmed_lsn > (stored_lsn := folder.stored_lsn(state)):
            raise ReplicationError(
                f"somebody else has read from the slot {request.slot}, or created it anew: it stands at "
                f"{format_lsn(confirmed_lsn)}, the recording ends at {format_lsn(stored_lsn)}, and what is "
                "between is lost: record anew in another folder"
            )
        else:
            folder.save(state)
            if request.snapshot:
                self._tell(SnapshotKept(recording=state.recording))
        return confirmed_lsn

    def _check_end(self, state: State, *, in_recovery: bool) -> None:
        """See that the server's WAL reaches to the end of the recording."""
        stored_lsn, flush_lsn = self._folder.stored_lsn(state), self._server.flush_lsn
        if flush_lsn >= stored_lsn:
            return
        ends = f"stands at {format_lsn(flush_lsn)}, before the end of the recording, {format_lsn(stored_lsn)}"
        if in_recovery:
            raise ConnectionLost(f"the standby {ends}: it has to replay more first")
        raise ReplicationError(
            f"the server {ends}: it was restored, or is another; record anew in another folder"
        )

    def _adopt(self, state: State, before: Published, lsn: int) -> None:
        """Begin a recording with a slot that is there."""
        self._folder.save_published(before)
        incomplete = without_snapshot(before, self._catalogs)
        self._folder.save(msgspec.structs.replace(state, acknowledged_lsn=lsn, incomplete=incomplete))

    def _begin(self, state: State, source: Source, before: Published) -> int:
        """Create the slot, and make the snapshot."""
        request = self._request
        if not (request.create_slot or request.snapshot):
            raise ReplicationError(
                f"there is no slot {request.slot}: have it created (--create-slot), or give the name of "
                "another"
            )
        if not request.snapshot:
            return self._begin_without_snapshot(state)
        for attempts_left in reversed(range(_SNAPSHOT_ATTEMPTS)):
            try:
                return self._begin_with_snapshot(state, source, before)
            except SchemaChanged as error:
                if not attempts_left:
                    raise ReplicationError(f"the snapshot cannot begin: {error}") from None
        raise AssertionError

    def _begin_without_snapshot(self, state: State) -> int:
        """Create the slot; or leave all as it was."""
        lsn, _ = self._create()
        try:
            self._adopt(state, look(self._catalogs, self._request.publications), lsn)
        except BaseException:  # a slot that nobody reads keeps WAL for nothing
            self._undo(state)
            raise
        return lsn

    def _begin_with_snapshot(self, state: State, source: Source, before: Published) -> int:
        """Create the slot, and copy the tables; or leave all as it was."""
        folder, request = self._folder, self._request
        folder.save_published(before)
        folder.save(msgspec.structs.replace(state, snapshot="running"))
        try:
            lsn, snapshot = self._create()
        except ConnectionLost:  # it may be there all the same: the next start drops it
            raise
        except BaseException:
            folder.forget(state)
            raise
        try:
            copy = TableCopy(
                self._connection.pinned_dsn, source, folder.partial_snapshot(), str(snapshot), lsn
            )
            copied = copy.run(self._tell, self._stop, request.segment_bytes)
            folder.finish_snapshot()
            after = look(self._catalogs, request.publications)
            difference = compare(before, after, _now(), self._catalogs, copied)
            folder.save_published(after)
            folder.save(
                msgspec.structs.replace(
                    state, acknowledged_lsn=lsn, snapshot="complete", incomplete=difference.incomplete
                )
            )
        except BaseException:  # nothing is half done, and no WAL is kept for nobody
            self._undo(state)
            raise
        return lsn

    def _create(self) -> tuple[int, str | None]:
        connection = self._connection
        with SlotWait(connection.pinned_dsn, connection.backend_pid, self._tell):
            return servers.create_slot(
                connection,
                self._request.slot,
                self._server,
                two_phase=self._request.options.two_phase,
                failover=self._request.failover,
                export_snapshot=self._request.snapshot,
                stop=self._stop,
            )

    def _undo(self, state: State) -> None:
        """Remove the slot and what was begun in the folder; if the server is gone, the next start does it."""
        with suppress(ConnectionLost):
            servers.drop_slot(self._connection, self._request.slot)
            with suppress(RecordingError):  # the folder is gone
                self._folder.forget(state)

    # What is published

    def _compare(self) -> Published:
        """Compare what is published now with the last look; note what the recording lacks."""
        folder = self._folder
        before = folder.published
        if before is None:
            raise RecordingError(
                f"{folder.path}: _published.json is missing: put it back, or record anew in another folder"
            )
        after = look(self._catalogs, self._request.publications)
        check_identity(before, after)
        note(folder, after, compare(before, after, _now(), self._catalogs))
        return after

    def _refuse_incomplete(self) -> None:
        assert self._folder.state is not None
        if incomplete := self._folder.state.incomplete:
            raise incomplete_error(self._folder.path, incomplete)

    def _recorded_since(self, confirmed_lsn: int, source: Source) -> tuple[int, RecordedCommits]:
        """Where to begin, and the commits recorded behind it, which the server sends again from there.

        What was recorded with other options or publications is not comparable, nor is what they left out
        behind it: then it is compared from the first commit on that was recorded with these.
        """
        paths: list[Path] = []
        has_others = False
        for path in reversed(list_segments(self._folder.path) if self._folder.last_segment() else []):
            metadata = read_metadata(path)
            if metadata.kind == "snapshot" or metadata.end_lsn <= confirmed_lsn:
                break
            if any(getattr(metadata.source, name) != getattr(source, name) for name in _DECIDES_WHAT_COMES):
                has_others = True
                break
            paths.insert(0, path)
        recorded = recorded_commits(paths, metadata.end_lsn if has_others else confirmed_lsn)
        if has_others and len(recorded):
            confirmed_lsn = int(recorded["lsn"][0])
        return confirmed_lsn, recorded


def note(folder: Folder, published: Published, difference: Difference) -> None:
    """Keep a look, and what it found, on the disk: the findings first, since the look is not made twice."""
    if difference.changes or difference.incomplete:
        folder.update(
            incomplete=lambda state: _merged(state.incomplete, difference.incomplete),
            publication_changes=lambda state: (*state.publication_changes, *difference.changes),
        )
    folder.save_published(published)


def incomplete_error(path: Path, incomplete: Iterable[IncompleteTable]) -> RecordingError:
    """The error that `strict` raises."""
    tables = "; ".join(f"{one.namespace or 'pg_catalog'}.{one.name}: {one.reason}" for one in incomplete)
    return RecordingError(
        f"{path}: the recording lacks rows of some tables ({tables}): record them anew in another folder "
        "with a snapshot, or go on without --strict"
    )


def _merged(
    known: Iterable[IncompleteTable], found: Iterable[IncompleteTable]
) -> tuple[IncompleteTable, ...]:
    """All of them, one for each table, with its first reason and the last one."""
    merged = {one.oid: one for one in known}
    for one in found:
        old = merged.get(one.oid)
        reason = one.reason if old is None else f"{old.reason.partition('; ')[0]}; {one.reason}"
        merged[one.oid] = msgspec.structs.replace(old or one, reason=reason)
    return tuple(merged.values())


def _now() -> int:
    """The time by this machine's clock, in microseconds since 2000."""
    return time.time_ns() // 1000 - EPOCH_UNIX_MICROSECONDS
