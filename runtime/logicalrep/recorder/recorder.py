"""A recorder: it connects, records a session, and connects again when the connection is lost."""

from __future__ import annotations

import errno
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from logicalrep.errors import ChangesLost, ConnectionLost, RecordingError, ReplicationError
from logicalrep.recorder.client import (
    Connection,
    CredentialsRefused,
    Interrupted,
    LateRefusal,
    identify,
    parse_dsn,
)
from logicalrep.recorder.events import Event, Lost, Reconnecting
from logicalrep.recorder.options import RecorderOptions, Resync, Settings
from logicalrep.recorder.session import Reporter, SessionLoop, SessionStarter
from logicalrep.recorder.storage import Folder, open_folder
from logicalrep.recording import SEGMENT_BYTES, parse_store_url
from logicalrep.wire import is_utf8, parse_lsn, shown_text

_URI: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/")
"""Pattern for the start of a URI, with one slash: pathlib removes the second slash of `://`."""

_MIN_PAUSE: Final = 0.5
"""Seconds between the first and the second connection attempt."""

_MAX_PAUSE: Final = 30.0
"""Largest number of seconds between two connection attempts."""


class Recorder:
    """Records the stream of a replication slot to a folder of segments.

    Args:
        dsn: Connection string of libpq: server and database; or a function that returns it. The function is
            called before each connection attempt, so that a new password is used. If the function raises
            ConnectionLost, the recorder tries again.
        slot: Name of the replication slot.
        publications: Names of the publications to record.
        recording: Folder of the recording, or URL in an object store (`s3://`, `gs://`, `az://`). An existing
            recording is continued.
        options: Options of the stream.
        create_slot: Whether to create the slot of a new recording if it does not exist.
        failover: Whether to create a slot that standbys keep, with the flag failover (since PostgreSQL 17).
        after_upgrade: Whether to continue the recording if pg_upgrade has upgraded the recorded server to
            this server (since PostgreSQL 17). No effect if the recording was continued on this server before.
        snapshot: Whether to begin a new recording with a copy of the published tables, and to copy the rows
            of tables that are published later.
        resync: When to copy the rows of tables anew, also without `snapshot`: `on-ddl` after an ALTER TABLE
            that has changed existing rows without sending them; `never`.
        workers: Largest number of ranges of tables that are copied in parallel, each on its own connection.
            A range has 64 MiB.
        max_snapshot_age: Age in seconds at which no more ranges are copied from an exported snapshot; the
            rest is copied from a new one. Tables without a key are copied from one snapshot of any age. None
            for no limit.
        strict: Whether an incomplete table ends the recorder with an error.
        segment_bytes: Total size of messages at which a segment ends, in bytes.
        segment_seconds: Age in seconds at which a segment ends; later if it has only unfinished transactions.
        retry_for: Seconds that an outage may last, from its first error until the server streams again; 0 to
            never reconnect.
        on_event: Called with each event, from several threads.

    Raises:
        ValueError: `publications` is empty, `workers` is less than 1, the DSN cannot be parsed,
            `recording` is a URI of another kind, or a name is not valid UTF-8.
    """

    def __init__(
        self,
        dsn: str | Callable[[], str],
        slot: str,
        publications: Sequence[str],
        recording: str | Path,
        *,
        options: RecorderOptions | None = None,
        create_slot: bool = False,
        failover: bool = False,
        after_upgrade: bool = False,
        snapshot: bool = False,
        resync: Resync = "never",
        workers: int = 4,
        max_snapshot_age: float | None = None,
        strict: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = 10.0,
        retry_for: float = 300.0,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if isinstance(publications, str) or not publications:
            raise ValueError(f"publications must be a list of at least one name, not {publications!r}")
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        for name in publications:
            if not is_utf8(name):
                raise ValueError(
                    f"the name of the publication {shown_text(name)} is not valid UTF-8: rename it"
                )
        if isinstance(dsn, str):
            parse_dsn(dsn)
        self._dsn = dsn
        self._place = _checked_place(os.fspath(recording))
        self._settings = Settings(
            slot=slot,
            publications=tuple(publications),
            options=options or RecorderOptions(),
            create_slot=create_slot,
            failover=failover,
            after_upgrade=after_upgrade,
            snapshot=snapshot,
            resync=resync,
            workers=workers,
            max_snapshot_age=max_snapshot_age,
            strict=strict,
            segment_bytes=segment_bytes,
            segment_seconds=segment_seconds,
        )
        self._retry_for = retry_for
        self._reporter = Reporter(on_event, self._place, self._settings)
        self._stop = threading.Event()
        self._deadline: float | None = None
        """Time at which `run` returns, by time.monotonic(); None to run without end."""

    def stop(self) -> None:
        """Make `run` store and acknowledge all received messages, and then return.

        May be called from any thread, and from a signal handler.
        """
        self._stop.set()

    def run(self, *, until: int | str | None = None, seconds: float | None = None) -> None:
        """Record until `until` or `seconds` is reached, or until `stop` is called.

        A connection that is lost or refused is made again after a pause of up to half a minute.

        Args:
            until: LSN as a number or text; `run` returns when everything up to it is stored. `now` is the end
                of the server's WAL when the server is first reached. None for no end. Later
                messages than `until` are stored too if they arrive at the same time.
            seconds: Time after which to return, in seconds; None for no end.

        Raises:
            ValueError: `until` is not an LSN.
            ReplicationError: The server refuses a command, or server, slot or publications do not
                fit the settings.
            ChangesLost: The server cannot continue the recording any more.
            ConnectionLost: No stream began within `retry_for` seconds after an error.
            RecordingInUse: Another recorder uses the folder.
            RecordingError: The folder has the recording of another slot or server.
            DecodeError: The server has sent a message that cannot be decoded.
            OSError: A file cannot be written. Everything that was acknowledged is stored.
        """
        self._deadline = None if seconds is None else time.monotonic() + seconds
        target = until if isinstance(until, int) else None
        if isinstance(until, str) and until != "now":
            target = parse_lsn(until)
        retry = _RetryPolicy(self._retry_for)
        report = self._reporter.report
        try:
            folder = self._open_folder(retry)
        except Interrupted:
            self._reporter.report_stopped()
            return
        with folder:
            while not self._is_over():
                folder.check_in_place()
                try:
                    with Connection(self._read_dsn(), replication=True, on_notice=report) as connection:
                        server = identify(connection)
                        if until == "now" and target is None:
                            target = server.flush_lsn
                        start = SessionStarter(
                            connection, server, folder, self._settings, report, self._is_over
                        ).prepare()
                        loop = SessionLoop(connection, folder, start, self._settings, self._reporter)
                        if loop.run(target, self._is_over, retry.stream_begins):
                            break
                except Interrupted:
                    break
                except ChangesLost as error:
                    report(Lost(reason=str(error)))
                    raise
                except OSError as error:
                    raise _with_advice(error, folder.path) from None
                except RecordingError as error:
                    if folder.is_local or not isinstance(error.__cause__, OSError):
                        raise
                    self._pause(retry, ConnectionLost(str(error)))  # retryable: a read from the store failed
                except (ConnectionLost, LateRefusal) as error:
                    self._pause(retry, error)
        self._reporter.report_stopped()

    def _open_folder(self, retry: _RetryPolicy) -> Folder:
        while True:
            try:
                return open_folder(self._place, self._is_over)
            except ConnectionLost as error:
                self._pause(retry, error)

    def _read_dsn(self) -> str:
        if isinstance(self._dsn, str):
            return self._dsn
        try:
            parse_dsn(dsn := self._dsn())
        except ValueError as error:  # retryable: the DSN may have been read while it was written
            raise CredentialsRefused(str(error)) from None
        return dsn

    def _pause(self, retry: _RetryPolicy, error: ReplicationError) -> None:
        pause = retry.next_pause(error)
        self._reporter.report(Reconnecting(reason=str(error), seconds=round(pause, 1)))
        self._wait(pause)

    def _is_over(self) -> bool:
        return self._stop.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _wait(self, seconds: float) -> None:
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - time.monotonic()))
        self._stop.wait(seconds)


class _RetryPolicy:
    """The pauses between connection attempts, and the time after which a recorder gives up.

    Args:
        retry_for: Time after the first error of an outage within which a stream must begin, in seconds.
    """

    def __init__(self, retry_for: float) -> None:
        self._retry_for = retry_for
        self._pause = _MIN_PAUSE
        self._outage_start: float | None = None
        """Time of the first error since the last stream, by time.monotonic(); None without an outage."""
        self._stream_start = math.inf
        """Time when the last stream began, by time.monotonic(); infinity before the first stream."""

    def stream_begins(self) -> None:
        """Note that the server streams: the connection attempt has succeeded, and the outage is over."""
        self._outage_start = None
        self._stream_start = time.monotonic()

    def next_pause(self, error: ReplicationError) -> float:
        """Return the seconds to wait before the next connection attempt.

        The pauses grow exponentially, with jitter, up to half a minute. They begin anew after a stream,
        unless it was shorter than the first pause: the server may crash whenever it streams.

        Args:
            error: The retryable error that ended the attempt. `LateRefusal` is retried only if the server has
                streamed before: an administrator may be replacing the credentials.

        Raises:
            ReplicationError: `error` itself, if there must be no further attempt.
        """
        now = time.monotonic()
        if self._outage_start is None:
            self._outage_start = now
            if now - self._stream_start >= _MIN_PAUSE:
                self._pause = _MIN_PAUSE
        left = self._outage_start + self._retry_for - now
        if left <= 0 or (isinstance(error, LateRefusal) and self._stream_start == math.inf):
            raise error
        pause = min(self._pause, left)
        self._pause = min(self._pause * random.uniform(1.5, 2.5), _MAX_PAUSE)
        return pause


def _checked_place(folder: str) -> str:
    """Return the path of a folder, from a path or a URI with `file:`; or the URL of an object store.

    Raises:
        ValueError: `folder` is a URI of another kind, the URL of an object store without a path, or not valid
            UTF-8.
    """
    if folder.startswith("file:///"):
        folder = unquote(folder.removeprefix("file://"))
    url = parse_store_url(folder)
    if url is not None and not url.path:
        raise ValueError(
            f"{folder}: the URL of a recording needs a path in the bucket or container: s3://BUCKET/PATH"
        )
    if url is None and (uri := _URI.match(folder)):
        raise ValueError(
            f"cannot record to {uri[1]}://…: give a folder, or a URL s3://BUCKET/PATH, gs://BUCKET/PATH or "
            "az://CONTAINER/PATH without credentials and options (set these in environment variables)"
        )
    if not is_utf8(folder):  # pyarrow cannot open such a file
        raise ValueError(f"the name of the folder {shown_text(folder)} is not valid UTF-8: choose another")
    return folder


def _with_advice(error: OSError, folder: Path) -> OSError:
    """Return the error of a full disk with the folder and advice added; return any other error unchanged."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return error
    text = "everything acknowledged is stored: free disk space, and start again to continue"
    return OSError(error.errno, f"{os.strerror(error.errno)}; {text}", str(folder))
