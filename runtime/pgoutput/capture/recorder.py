"""A recorder: connects, sees that all is right, records, and connects again."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

import msgspec

from pgoutput.capture import server as servers
from pgoutput.capture.connection import Connection, Interrupted, UndefinedObject
from pgoutput.capture.events import Connected, Event, Progress, Reconnecting, Stopped, Stored
from pgoutput.capture.folder import Folder, State
from pgoutput.capture.lag import WalEnd
from pgoutput.capture.options import Options
from pgoutput.capture.server import Server
from pgoutput.capture.session import Session
from pgoutput.capture.snapshot import SchemaChanged, TableCopy
from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.segments import SEGMENT_BYTES, Metadata, Source, Start
from pgoutput.wire import format_lsn, parse_lsn, to_datetime

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_PROGRESS_SECONDS: Final = 1.0
_SNAPSHOT_ATTEMPTS: Final = 5


class Recorder:
    """Records a replication slot into a folder of segments.

    Args:
        dsn: The server and the database, as libpq takes it.
        slot: The replication slot.
        publications: The publications to record.
        folder: Where the segments go. A recording that is there already is continued.
        options: What to ask the server for.
        create_slot: Create the slot if a new recording does not find it.
        snapshot: Begin a new recording with what the published tables hold when the slot is created.
        segment_bytes: A segment ends when its messages have so many bytes.
        segment_seconds: Or when it is so old, and holds what can be acknowledged.
        on_event: Is told what happens; from several threads.

    Raises:
        ValueError: There are no publications.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        publications: Sequence[str],
        folder: str | Path,
        *,
        options: Options | None = None,
        create_slot: bool = False,
        snapshot: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = 10.0,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if isinstance(publications, str) or not publications:
            raise ValueError(f"publications are a list of names, and not {publications!r}")
        self._dsn = dsn
        self._slot = slot
        self._publications = tuple(publications)
        self._path = Path(folder)
        self._options = options or Options()
        self._create_slot = create_slot
        self._snapshot = snapshot
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        self._on_event = on_event
        self._stop = threading.Event()
        self._deadline: float | None = None
        self._messages = 0
        self._acknowledged_lsn: int | None = None

    def stop(self) -> None:
        """Have `run` store and acknowledge what has come, and return; from any thread or signal handler."""
        self._stop.set()

    def run(self, *, until: int | str | None = None, seconds: float | None = None) -> None:
        """Record.

        A connection that ends is made again, after a pause that grows to half a minute.

        Args:
            until: Return when all that ended up to this LSN is stored, a number or text; `now` is the end of
                the server's WAL when it is first reached. What comes together with it is stored as well.
            seconds: Return after this time.

        Raises:
            ValueError: `until` is no LSN.
            ReplicationError: The server cannot be recorded as it is, or cannot be reached at the start.
            CaptureError: The folder is in use, or is not one for this recording.
            DecodeError: The server has sent what cannot be.
            OSError: A segment could not be written. What was acknowledged is stored.
        """
        self._deadline = None if seconds is None else time.monotonic() + seconds
        target = until if isinstance(until, int) else None
        if isinstance(until, str) and until != "now":
            target = parse_lsn(until)
        pause, reached = _FIRST_PAUSE, False
        with Folder(self._path) as folder:
            while not self._is_over():
                began = time.monotonic()
                try:
                    with Connection(self._dsn, replication=True, on_notice=self._tell) as connection:
                        server = servers.identify(connection)
                        if until == "now" and target is None:
                            target = server.flush_lsn
                        reached = reached or folder.state is not None
                        session = self._open(connection, server, folder)
                        reached = True
                        with WalEnd(connection.pinned_dsn) if self._on_event else nullcontext() as wal_end:
                            self._record(session, target, wal_end)
                        break
                except Interrupted:
                    break
                except OSError as error:
                    raise _explained(error, self._path) from None
                except ConnectionLost as error:
                    if not reached:
                        raise
                    if time.monotonic() - began > _LONGEST_PAUSE:
                        pause = _FIRST_PAUSE
                    self._tell(Reconnecting(reason=str(error), seconds=round(pause, 1)))
                    self._wait(pause)
                    pause = min(pause * random.uniform(1.5, 2.5), _LONGEST_PAUSE)
        lsn = None if self._acknowledged_lsn is None else format_lsn(self._acknowledged_lsn)
        self._tell(Stopped(messages=self._messages, acknowledged_lsn=lsn))

    def _open(self, connection: Connection, server: Server, folder: Folder) -> Session:
        """See that all is right, and begin to stream."""
        proto_version, options = self._options.negotiate(server.major_version)
        servers.check_publications(connection, server, self._publications)
        state = folder.claim(self._slot, server.system_identifier, server.database)
        source = Source(
            recording=state.recording,
            system_identifier=server.system_identifier,
            server_version=server.version,
            database=server.database,
            slot=self._slot,
            publications=self._publications,
            proto_version=proto_version,
            options=options,
            slot_two_phase=self._options.two_phase,
        )
        begin_lsn = self._slot_position(connection, server, folder, state, source)
        start = folder.start(begin_lsn)
        connection.start_replication(
            servers.start_command(self._slot, start.lsn, proto_version, self._publications, options)
        )
        self._tell(
            Connected(
                session=start.session,
                server_version=server.version,
                slot=self._slot,
                proto_version=proto_version,
                options=options,
                start_lsn=format_lsn(start.lsn),
            )
        )
        return self._session(connection, server, folder, source, start, max(start.lsn, begin_lsn))

    def _slot_position(
        self, connection: Connection, server: Server, folder: Folder, state: State, source: Source
    ) -> int:
        """Where the slot stands. A slot that a new recording lacks is created, and the snapshot made."""
        if state.snapshot == "running":  # but it was not finished, and the slot does not fit to a new one
            servers.drop_slot(connection, self._slot)
            state = folder.forget(state)
        slot = servers.find_slot(connection, self._slot)
        if state.acknowledged_lsn is None:
            if slot is None:
                return self._begin(connection, server, folder, state, source)
            if self._snapshot:
                raise ReplicationError(
                    f"the slot {self._slot} is there already, and a snapshot needs a new one: drop it with "
                    f"{servers.drop_command(self._slot)}, or choose another name"
                )
        elif self._snapshot and state.snapshot != "complete":
            raise ReplicationError(
                f"{self._path}: the recording has begun without a snapshot: "
                "use another folder and another slot"
            )
        elif slot is None:
            raise ReplicationError(
                f"the slot {self._slot} is gone, and with it what came after "
                f"{format_lsn(folder.stored_lsn(state))}: record anew in another folder"
            )
        servers.check_slot(slot, self._slot, server, self._options.two_phase)
        if server.flush_lsn < folder.stored_lsn(state):
            raise ReplicationError(
                f"the server stands at {format_lsn(server.flush_lsn)}, before the end of the recording, "
                f"{format_lsn(folder.stored_lsn(state))}: it was restored, or is another; "
                "record anew in another folder"
            )
        confirmed_lsn = parse_lsn(str(slot.confirmed_flush_lsn))
        if state.acknowledged_lsn is None:
            folder.save(msgspec.structs.replace(state, acknowledged_lsn=confirmed_lsn))
        elif confirmed_lsn > (stored_lsn := folder.stored_lsn(state)):
            raise ReplicationError(
                f"somebody else has read from the slot {self._slot}, or created it anew: it stands at "
                f"{format_lsn(confirmed_lsn)}, the recording ends at {format_lsn(stored_lsn)}, and what is "
                "between is lost: record anew in another folder"
            )
        return confirmed_lsn

    def _begin(
        self, connection: Connection, server: Server, folder: Folder, state: State, source: Source
    ) -> int:
        """Create the slot, and make the snapshot."""
        if not (self._create_slot or self._snapshot):
            raise ReplicationError(
                f"there is no slot {self._slot}: have it created (--create-slot), or give the name of another"
            )
        if not self._snapshot:
            lsn, _ = self._create(connection, server)
            folder.save(msgspec.structs.replace(state, acknowledged_lsn=lsn))
            return lsn
        for attempts_left in reversed(range(_SNAPSHOT_ATTEMPTS)):
            try:
                return self._make_snapshot(connection, server, folder, state, source)
            except SchemaChanged as error:
                if not attempts_left:
                    raise ReplicationError(f"the snapshot cannot begin: {error}") from None
        raise AssertionError

    def _make_snapshot(
        self, connection: Connection, server: Server, folder: Folder, state: State, source: Source
    ) -> int:
        """Create the slot, and copy the tables; or leave all as it was."""
        folder.save(msgspec.structs.replace(state, snapshot="running"))
        try:
            lsn, snapshot = self._create(connection, server)
        except ConnectionLost:  # it may be there all the same: the next start drops it
            raise
        except BaseException:
            folder.forget(state)
            raise
        try:
            copy = TableCopy(connection.pinned_dsn, source, folder.partial_snapshot(), str(snapshot), lsn)
            copy.run(self._tell, self._is_over, self._segment_bytes)
            folder.finish_snapshot()
        except BaseException:  # nothing is half done, and no WAL is kept for nobody
            with suppress(ConnectionLost):  # then the next start does it
                servers.drop_slot(connection, self._slot)
                folder.forget(state)
            raise
        folder.save(msgspec.structs.replace(state, acknowledged_lsn=lsn, snapshot="complete"))
        return lsn

    def _create(self, connection: Connection, server: Server) -> tuple[int, str | None]:
        return servers.create_slot(
            connection,
            self._slot,
            server,
            two_phase=self._options.two_phase,
            export_snapshot=self._snapshot,
            stop=self._is_over,
        )

    def _session(
        self,
        connection: Connection,
        server: Server,
        folder: Folder,
        source: Source,
        start: Start,
        acknowledged_lsn: int,
    ) -> Session:
        last_segment = start.number - 1

        def stored(path: Path, metadata: Metadata) -> None:
            nonlocal last_segment
            last_segment = metadata.number
            self._tell(
                Stored(
                    path=str(path),
                    session=metadata.session,
                    messages=metadata.messages,
                    transactions=metadata.transactions,
                    end_lsn=format_lsn(metadata.end_lsn),
                )
            )

        def acknowledging(lsn: int) -> None:
            assert folder.state is not None
            state = msgspec.structs.replace(folder.state, acknowledged_lsn=lsn, last_segment=last_segment)
            folder.save(state)

        return Session(
            connection,
            folder.path,
            source,
            start,
            acknowledged_lsn=acknowledged_lsn,
            sender_timeout=server.sender_timeout,
            segment_bytes=self._segment_bytes,
            segment_seconds=self._segment_seconds,
            stored=stored,
            acknowledging=acknowledging,
        )

    def _record(self, session: Session, target: int | None, wal_end: WalEnd | None) -> None:
        before = self._messages
        told, told_at = before, time.monotonic()

        def tick() -> None:
            nonlocal told, told_at
            self._messages = before + session.messages
            seconds = time.monotonic() - told_at
            if seconds >= _PROGRESS_SECONDS:
                self._tell_progress(session, (self._messages - told) / seconds, wal_end)
                told, told_at = self._messages, time.monotonic()

        try:
            session.run(target, self._is_over, tick)
        except UndefinedObject as error:  # the server reads its catalogs as they were where it reads the WAL
            raise ReplicationError(
                f"{error} where the slot {self._slot} stands: do without it, or record anew from a new slot "
                "and in another folder"
            ) from None
        finally:
            self._messages = before + session.messages
            self._acknowledged_lsn = session.acknowledged_lsn

    def _tell_progress(self, session: Session, rate: float, wal_end: WalEnd | None) -> None:
        end = None if wal_end is None else wal_end.lsn
        time_ = session.last_commit_time
        self._tell(
            Progress(
                messages=self._messages,
                messages_per_second=round(rate, 1),
                lag_bytes=None if end is None else max(0, end - session.acknowledged_lsn),
                last_commit_time=None if time_ is None else to_datetime(time_).isoformat(),
                open_transactions=session.open_transactions,
                acknowledged_lsn=format_lsn(session.acknowledged_lsn),
            )
        )

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def _is_over(self) -> bool:
        return self._stop.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _wait(self, seconds: float) -> None:
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - time.monotonic()))
        self._stop.wait(seconds)


def _explained(error: OSError, folder: Path) -> OSError:
    """The error of a full disk, which says little by itself."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return error
    text = "what was acknowledged is stored: make room, and start again to go on from there"
    return OSError(error.errno, f"{os.strerror(error.errno)}; {text}", str(folder))
