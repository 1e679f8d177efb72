"""A recorder: connects, sees that all is right, records, and connects again."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.recorder import server as servers
from pgoutput.recorder.alterations import Difference
from pgoutput.recorder.attempts import Attempts
from pgoutput.recorder.connection import Connection, Interrupted, parse_dsn
from pgoutput.recorder.events import (
    Connected,
    Event,
    Progress,
    PublicationAltered,
    Reconnecting,
    Stopped,
    Stored,
    TableIncomplete,
)
from pgoutput.recorder.failures import CredentialsRefused, UndefinedObject
from pgoutput.recorder.folder import Folder
from pgoutput.recorder.opening import Opened, Opening, Request, incomplete_error, note
from pgoutput.recorder.options import RecorderOptions
from pgoutput.recorder.session import Session
from pgoutput.recorder.watch import Watch
from pgoutput.recording import SEGMENT_BYTES, IncompleteTable, Metadata, PublicationChange, Remarks
from pgoutput.wire import format_lsn, parse_lsn, shown_text, to_datetime

_URI: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/")
"""A URI, also as pathlib changes it: with one slash."""

_PROGRESS_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 5.0
"""How long a segment waits for the catalogs to be looked at; then it is stored, and the next one says it."""


News: TypeAlias = Callable[[Sequence[int]], bool]


class Recorder:
    """Records a replication slot into a folder of segments.

    Args:
        dsn: The server and the database, as libpq takes it.
        slot: The replication slot.
        publications: The publications to record.
        folder: Where the segments go. A recording that is there already is continued.
        options: What to ask the server for.
        create_slot: Create the slot if a new recording does not find it.
        failover: Create the slot so that standbys keep it (PostgreSQL 17).
        snapshot: Begin a new recording with what the published tables hold when the slot is created.
        strict: Refuse to record where tables are incomplete: the recording lacks rows of them.
        segment_bytes: A segment ends when its messages have so many bytes.
        segment_seconds: Or when it is so old, and holds what can be acknowledged.
        retry_for: Seconds after the first error of an outage in which a connection must begin to stream; 0 to
            never connect again.
        on_event: Is told what happens; from several threads.

    Raises:
        ValueError: There are no publications, the DSN cannot be read, the folder is a URI, or a name is not
            valid UTF-8.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        publications: Sequence[str],
        folder: str | Path,
        *,
        options: RecorderOptions | None = None,
        create_slot: bool = False,
        failover: bool = False,
        snapshot: bool = False,
        strict: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = 10.0,
        retry_for: float = 300.0,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if isinstance(publications, str) or not publications:
            raise ValueError(f"publications are a list of names, and not {publications!r}")
        for name in publications:
            if shown_text(name) != name:
                raise ValueError(f"the name of the publication {shown_text(name)} is not valid UTF-8")
        parse_dsn(dsn)
        _check_path(os.fspath(folder))
        self._dsn = dsn
        self._path = Path(folder)
        self._request = Request(
            slot=slot,
            publications=tuple(publications),
            options=options or RecorderOptions(),
            create_slot=create_slot,
            failover=failover,
            snapshot=snapshot,
            strict=strict,
            segment_bytes=segment_bytes,
        )
        self._told_incomplete = False
        self._segment_seconds = segment_seconds
        self._retry_for = retry_for
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

        A connection that ends, or cannot be made, is made again after a pause that grows to half a minute.

        Args:
            until: Return when all that ended up to this LSN is stored, a number or text; `now` is the end of
                the server's WAL when it is first reached. What comes together with it is stored as well.
            seconds: Return after this time.

        Raises:
            ValueError: `until` is no LSN.
            ReplicationError: The server cannot be recorded as it is.
            ConnectionLost: No connection began to stream within `retry_for` seconds.
            RecordingError: The folder is in use, or is not one for this recording.
            DecodeError: The server has sent what cannot be.
            OSError: A segment could not be written. What was acknowledged is stored.
        """
        self._deadline = None if seconds is None else time.monotonic() + seconds
        target = until if isinstance(until, int) else None
        if isinstance(until, str) and until != "now":
            target = parse_lsn(until)
        attempts = Attempts(self._retry_for)
        with Folder(self._path) as folder:
            while not self._is_over():
                attempts.begin()
                try:
                    with Connection(self._dsn, replication=True, on_notice=self._tell) as connection:
                        server = servers.identify(connection)
                        if until == "now" and target is None:
                            target = server.flush_lsn
                        with Opening(
                            connection, server, folder, self._request, self._tell, self._is_over
                        ) as opening:
                            opened = opening.open()
                        self._stream(connection, folder, opened, target, attempts.streams)
                        break
                except Interrupted:
                    break
                except OSError as error:
                    raise _explained(error, self._path) from None
                except (ConnectionLost, CredentialsRefused) as error:
                    pause = attempts.pause(error)
                    self._tell(Reconnecting(reason=str(error), seconds=round(pause, 1)))
                    self._wait(pause)
        lsn = None if self._acknowledged_lsn is None else format_lsn(self._acknowledged_lsn)
        self._tell(Stopped(messages=self._messages, acknowledged_lsn=lsn))

    def _stream(
        self,
        connection: Connection,
        folder: Folder,
        opened: Opened,
        target: int | None,
        begun: Callable[[], None],
    ) -> None:
        """Record from a connection until its end; call `begun` when it has begun to stream."""
        assert folder.state is not None
        if not self._told_incomplete:
            self._tell_incomplete(folder.state.incomplete)
            self._told_incomplete = True
        dsn = connection.pinned_dsn
        timelines = opened.timelines if opened.in_recovery else None
        with Watch(dsn, self._request.publications, opened.published, timelines) as watch:
            news = self._news(folder, watch)
            session = self._session(connection, folder, opened, news)
            begun()
            self._announce(folder, session)
            self._record(session, target, watch, news)

    def _session(self, connection: Connection, folder: Folder, opened: Opened, news: News) -> Session:
        """Begin to stream."""
        source, start = opened.source, opened.start
        connection.start_replication(
            servers.start_command(
                self._request.slot,
                opened.begin_lsn,
                source.proto_version,
                source.publications,
                source.options,
            )
        )
        self._tell(
            Connected(
                session=start.session,
                server_version=source.server_version,
                slot=source.slot,
                proto_version=source.proto_version,
                options=source.options,
                start_lsn=format_lsn(start.lsn),
            )
        )

        said: list[PublicationChange] = []

        def stored(path: Path, metadata: Metadata) -> None:
            told = metadata.publication_changes
            folder.update(
                last_segment=metadata.number,
                publication_changes=lambda state: tuple(
                    one for one in state.publication_changes if one not in told
                ),
            )
            self._tell(
                Stored(
                    path=str(path),
                    session=metadata.session,
                    messages=metadata.messages,
                    transactions=metadata.transactions,
                    end_lsn=format_lsn(metadata.end_lsn),
                )
            )

        def remarks(oids: Sequence[int]) -> Remarks:
            news(oids)  # this segment will say it
            assert folder.state is not None
            changes = tuple(one for one in folder.state.publication_changes if one not in said)
            said.extend(changes)
            return Remarks(folder.state.incomplete, changes)

        return Session(
            connection,
            folder.directory,
            source,
            start,
            acknowledged_lsn=opened.acknowledged_lsn,
            sender_timeout=opened.server.sender_timeout,
            segment_bytes=self._request.segment_bytes,
            segment_seconds=self._segment_seconds,
            stored=stored,
            acknowledging=lambda lsn: folder.update(acknowledged_lsn=lsn),
            remarks=remarks,
            resent=opened.resent,
        )

    def _news(self, folder: Folder, watch: Watch) -> News:
        """Return a function that notes what the watch has seen, and returns whether a segment should say it.

        Its argument are OIDs of relations that the stream has described: where one is not known to be
        published, it waits for a look, so that no segment has changes of an incomplete table in silence.
        """

        def news(oids: Sequence[int]) -> bool:
            assert folder.published is not None
            folder.check_place()
            if not folder.published.tables.keys() >= set(oids):
                watch.look_now(_LOOK_SECONDS)
            found = watch.news()
            for seen in found:
                note(folder, seen.published, seen.difference)
                self._tell_difference(seen.difference)
                if self._request.strict and seen.difference.incomplete:
                    raise incomplete_error(folder.path, seen.difference.incomplete)
            return any(seen.difference.changes or seen.difference.incomplete for seen in found)

        return news

    @staticmethod
    def _announce(folder: Folder, session: Session) -> None:
        """Have a segment say what no segment says yet."""
        assert folder.state is not None
        last = folder.last_segment()
        if last is not None and (
            folder.state.publication_changes or last.incomplete != folder.state.incomplete
        ):
            session.announce()

    def _tell_difference(self, difference: Difference) -> None:
        for change in difference.changes:
            self._tell(PublicationAltered(publication=change.publication, changes=change.changes))
        self._tell_incomplete(difference.incomplete)

    def _tell_incomplete(self, incomplete: Iterable[IncompleteTable]) -> None:
        for one in incomplete:
            table = f"{one.namespace or 'pg_catalog'}.{one.name}"
            self._tell(TableIncomplete(table=table, lsn=format_lsn(one.lsn), reason=one.reason))

    def _record(
        self,
        session: Session,
        target: int | None,
        watch: Watch,
        news: News,
    ) -> None:
        before = self._messages
        told, told_at = before, time.monotonic()

        def tick() -> None:
            nonlocal told, told_at
            self._messages = before + session.messages
            if news(()):
                session.announce()
            seconds = time.monotonic() - told_at
            if seconds >= _PROGRESS_SECONDS:
                self._tell_progress(session, (self._messages - told) / seconds, watch.wal_lsn)
                told, told_at = self._messages, time.monotonic()

        try:
            session.run(target, self._is_over, tick)
        except UndefinedObject as error:  # the server reads its catalogs as they were where it reads the WAL
            raise ReplicationError(
                f"{error} where the slot {self._request.slot} stands: do without it, or record anew from a "
                "new slot and in another folder"
            ) from None
        finally:
            self._messages = before + session.messages
            self._acknowledged_lsn = session.acknowledged_lsn

    def _tell_progress(self, session: Session, rate: float, end: int | None) -> None:
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


def _check_path(folder: str) -> None:
    """Check that segments can be written to a folder, as far as its name tells.

    Raises:
        ValueError: They cannot.
    """
    if uri := _URI.match(folder):
        raise ValueError(
            f"a recording is made in a local folder, and {uri[1]}://… is a URI: give the path of a folder"
        )
    if shown_text(folder) != folder:  # pyarrow opens no such file
        raise ValueError(f"the name of the folder {shown_text(folder)} is not valid UTF-8: choose another")


def _explained(error: OSError, folder: Path) -> OSError:
    """The error of a full disk, which says little by itself."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return error
    text = "what was acknowledged is stored: make room, and start again to go on from there"
    return OSError(error.errno, f"{os.strerror(error.errno)}; {text}", str(folder))
