"""Real replication clients: functions that read a slot and return the received messages."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import psycopg2
import psycopg2.extras
from psycopg import pq

from logicalrep import envelope
from logicalrep.messages import PrimaryKeepalive, StandbyStatusUpdate, XLogData
from logicalrep.recorder import Recorder, RecorderOptions
from logicalrep.recording import SegmentReader, list_segments
from logicalrep.wire import format_lsn
from tests.server import WHEEL_VERSION, _installation
from tests.versions import OLDEST

SLOT = "lake"
TIMEOUT_SECONDS = 60.0

COMMAND = f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 (proto_version '{OLDEST}', publication_names 'p')"

Client = Callable[[str, int, Path], list[bytes]]
"""Function that reads a slot up to an LSN or a lost connection. Arguments: DSN, LSN, folder for files."""


def create_slot(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")


def read_with_psycopg2(dsn: str, end_lsn: int, folder: Path) -> list[bytes]:
    """Read the slot with the replication cursor of psycopg 2, acknowledging each commit."""
    connection = psycopg2.connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    received: list[bytes] = []
    try:
        with connection.cursor() as cursor:
            cursor.start_replication(
                slot_name=SLOT, options={"proto_version": str(OLDEST), "publication_names": "p"}, decode=False
            )
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while time.monotonic() < deadline:
                message = cursor.read_message()
                if message is not None:
                    received.append(message.payload)
                    if message.payload[:1] == b"C":
                        cursor.send_feedback(  # type: ignore[no-untyped-call]
                            flush_lsn=message.data_start, force=True
                        )
                elif cursor.wal_end >= end_lsn:
                    cursor.send_feedback(  # type: ignore[no-untyped-call]
                        flush_lsn=cursor.wal_end, force=True
                    )
                    # Closed with unread messages, the connection is reset, and the feedback may be lost.
                    while select.select([cursor], [], [], 0.5)[0]:
                        cursor.read_message()
                    return received
                else:
                    select.select([cursor], [], [], 1.0)
    except psycopg2.Error:
        return received
    finally:
        connection.close()
    raise AssertionError(f"the end LSN was not reached in {TIMEOUT_SECONDS} seconds")


def read_with_psycopg3(dsn: str, end_lsn: int, folder: Path) -> list[bytes]:
    """Read the slot with the libpq wrapper of psycopg 3, acknowledging each commit."""
    connection = psycopg.connect(f"{dsn} replication=database", autocommit=True)
    received: list[bytes] = []
    libpq = connection.pgconn
    try:
        assert libpq.exec_(COMMAND.encode()).status == pq.ExecStatus.COPY_BOTH
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            size, data = libpq.get_copy_data(1)
            if size == 0:
                select.select([libpq.socket], [], [], 1.0)
                libpq.consume_input()
                continue
            if size < 0:
                return received
            message = envelope.decode(bytes(data))
            if isinstance(message, XLogData):
                received.append(message.data)
                if message.data[:1] == b"C":
                    _acknowledge(libpq, message.wal_end)
            elif isinstance(message, PrimaryKeepalive) and message.wal_end >= end_lsn:
                _acknowledge(libpq, message.wal_end)
                libpq.put_copy_end()
                libpq.flush()  # the next get_copy_data returns -1
    except psycopg.Error:
        return received
    finally:
        connection.close()
    raise AssertionError(f"the end LSN was not reached in {TIMEOUT_SECONDS} seconds")


def _acknowledge(libpq: pq.abc.PGconn, lsn: int) -> None:
    libpq.put_copy_data(
        envelope.encode(
            StandbyStatusUpdate(
                written_lsn=lsn, flushed_lsn=lsn, applied_lsn=lsn, send_time=0, reply_requested=False
            )
        )
    )
    libpq.flush()


def read_with_recorder(dsn: str, end_lsn: int, folder: Path) -> list[list[bytes]]:
    """Read the slot with the recorder, which reconnects by itself. Return the messages of each session."""
    options = RecorderOptions(proto_version=OLDEST, streaming="off")
    recorder = Recorder(dsn, SLOT, ["p"], folder / "recording", options=options, segment_seconds=0.1)
    recorder.run(until=end_lsn, seconds=TIMEOUT_SECONDS)
    stored: dict[int, list[bytes]] = {}
    for path in list_segments(folder / "recording"):
        with SegmentReader(path) as segment:
            session = stored.setdefault(segment.metadata.session, [])
            for batch in segment.batches():
                rows = zip(batch["lsn"].to_pylist(), batch["data"].to_pylist(), strict=True)
                session += [data for lsn, data in rows if lsn is not None]  # without the keyframe
    return list(stored.values())


def run_pg_recvlogical(dsn: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    root, programs, *_ = _installation(WHEEL_VERSION)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    command = [str(root / programs / "bin/pg_recvlogical"), f"--dbname={dsn}", f"--slot={SLOT}", *arguments]
    return subprocess.run(
        command,
        env=environment | options.pop("env", {}),
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def read_with_pg_recvlogical(dsn: str, end_lsn: int, folder: Path, *arguments: str) -> bytes:
    """Read the slot with pg_recvlogical and return its output, which has a newline after each message.

    pg_recvlogical acknowledges the messages when it ends and when the server requests a reply. If the
    connection is lost, pg_recvlogical reconnects after 5 seconds; with --no-loop, it ends.
    """
    file = folder / "received"
    file.unlink(missing_ok=True)
    run_pg_recvlogical(
        dsn,
        *("--start", f"--file={file}", f"--endpos={format_lsn(end_lsn)}"),
        *(f"--option=proto_version={OLDEST}", "--option=publication_names=p", *arguments),
    )
    return file.read_bytes()


def commit_end_lsns(payloads: list[bytes]) -> list[int]:
    """Return the end LSNs of the Commit messages among these encoded messages."""
    return [struct.unpack_from(">Q", data, 10)[0] for data in payloads if data[:1] == b"C"]
