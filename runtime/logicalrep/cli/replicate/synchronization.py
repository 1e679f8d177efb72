"""The command `logicalrep sync`: a recorder in a process of its own, and a replica that follows it."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from threading import Event
from typing import IO

from logicalrep.cli.common.configuration import Reader, format_options
from logicalrep.cli.common.printing import printable
from logicalrep.cli.common.signals import stop_at_signals
from logicalrep.cli.record.metrics import RECORDER, RecorderMetrics
from logicalrep.cli.record.recording import decode_event, is_line
from logicalrep.cli.replicate.metrics import REPLICA, SELF_CHECK_DIFFERENCES
from logicalrep.cli.replicate.replication import Output, Run, apply_changes, replicate
from logicalrep.errors import RecordingError
from logicalrep.recorder import (
    Connection,
    Lost,
    event_level,
    event_text,
    is_requested,
    request_snapshot,
)
from logicalrep.recording import Recording, locate, parse_store_url
from logicalrep.replica import Updates
from logicalrep.verification import Replicated, SelfCheck

_OWN_SETTINGS = "LOGICALREP_RECORD_", "LOGICALREP_CONFIG"
"""Prefixes of environment variables that set options of `logicalrep record`.

The recorder does not get these variables: it has only the options that `logicalrep sync` gives it.
"""

_SERVICE = "OTEL_SERVICE_NAME"
"""Environment variable with the name that OpenTelemetry gives the spans of a process."""

_POLL_SECONDS = 0.2
"""Seconds between two checks whether the recorder has begun the recording."""

_END_SECONDS = 5.0
"""Largest number of seconds to wait for the end of the self-check, which may wait for a server."""

RECORDING = "_recording"
"""Name of the recording's folder in the target, unless another folder is given."""


def synchronize(
    target: str,
    recording: str | None,
    publications: Sequence[str],
    dsn: str | Reader,
    slot: str | None,
    segment_seconds: float,
    *,
    history: bool,
    latency: float,
    updates: Updates | None,
    iceberg: str | None,
    partition: Collection[str],
    copied_bytes: int | None,
    output: Output,
    metrics: str | None,
) -> None:
    """Record publications, and keep a replica, until a signal or an error of the recorder or the replica.

    At a signal, and after an error of the recorder, all stored changes are applied before the command ends.

    Args:
        target: Folder or URI of the replica.
        recording: Folder or URL of the recording; None for a folder in the target.
        publications: Names of the publications to record.
        dsn: Connection string of libpq, or a `Reader` of its reference in a configuration file. The recorder
            gets the reference, and resolves it.
        slot: Name of the replication slot; None to derive it from the publications.
        segment_seconds: Age in seconds at which a segment ends.
        history: Whether to keep all versions of rows (SCD type 2).
        latency: Least time between two micro-batches, in seconds.
        updates: How commits remove rows from now on: `vectors` (deletion vectors) or `rewrite` (of data
            files); None for no change.
        iceberg: Catalogue of the Iceberg tables of a new target. With None, a new target gets Delta tables.
        partition: Partition fields of new Iceberg tables.
        copied_bytes: Size below which a table is copied if the self-check finds a difference; None to check
            nothing.
        output: Prints events, warnings and micro-batches.
        metrics: HOST:PORT to serve the metrics of recorder and replica at; None to serve none.

    Raises:
        LogicalrepError: The changes cannot be applied; or `recording` is None, and the target is a URI at
            which no recording can be made.
        OSError: The recorder cannot be started.
    """
    if recording is None and "://" in target and parse_store_url(target) is None:
        raise RecordingError(
            f"{target}: no recording can be written to this URI: give a local folder or the URL of an object "
            "store with --recording"
        )
    recording = recording or os.path.join(target, RECORDING)
    command = [
        *(
            sys.executable,
            "-m",
            "logicalrep.cli",
            "record",
            "--config",
            "/dev/stdin",  # with the DSN: every user can see the arguments of a process
            "--snapshot",
            "--log",
            "json",
            "--detail",  # the metrics need each event about progress
            "--recording",
            recording,
        ),
        *("--slot", slot or slot_name(publications), "--segment-seconds", str(segment_seconds)),
        *(word for name in publications for word in ("--publication", name)),
    ]

    definitions = RECORDER + REPLICA
    run = Run(
        recording,
        target,
        follow=True,
        history=history,
        strict=False,
        latency=latency,
        updates=updates,
        iceberg=iceberg,
        partition=partition,
        output=output,
        metrics=definitions,
        is_recording=True,
    )
    observed = RecorderMetrics(run.metrics)
    run.observed.append(observed)

    def follow(run: Run, stop: Event) -> None:
        with _recorder(command, dsn, run, observed, stop) as (process, ended):
            place = locate(recording)
            while not (is_begun := place.is_folder) and not ended.wait(_POLL_SECONDS):
                pass
            if is_begun:  # otherwise the recorder could not begin, and prints why
                check = (
                    nullcontext()
                    if copied_bytes is None
                    else _self_check(run, observed, publications, dsn, copied_bytes)
                )
                with check:
                    apply_changes(run, ended)
                run.follow = False
                apply_changes(run, Event())  # apply what the recorder stored when it ended
        if process.returncode and not stop.is_set():
            sys.exit(max(process.returncode, 1))  # the recorder has printed its error

    replicate(run, follow, metrics)


def slot_name(publications: Sequence[str]) -> str:
    """Return a valid name for the replication slot of publications; a long name ends with a digest."""
    name = re.sub("[^a-z0-9_]", "_", f"logicalrep_{'_'.join(publications)}".lower())
    return name if len(name) <= 63 else f"{name[:54]}_{sha256(name.encode()).hexdigest()[:8]}"


@contextmanager
def _self_check(
    run: Run, observed: RecorderMetrics, publications: Sequence[str], dsn: str | Reader, copied_bytes: int
) -> Iterator[None]:
    """Compare the replica of a run with the server, in a thread, during a `with` block."""
    ends = Event()

    def request(name: str, keys: Collection[tuple[str, ...]] | None) -> str:
        file = request_snapshot(run.recording, [name], {} if keys is None else {name: keys})
        return file.path.rpartition("/")[2]

    replicated = Replicated(
        Recording(run.recording, may_be_empty=True),
        locate(run.target),
        publications,
        lambda: Connection(dsn if isinstance(dsn, str) else dsn()),
        lambda: observed.complete_lsn,
        lambda: run.applied_segment,
        request,
        lambda name: is_requested(locate(run.recording) / name),
        run.add,
        run.output.warn,
        copied_bytes,
        ends,
    )
    check = SelfCheck(replicated)
    run.metrics.set(SELF_CHECK_DIFFERENCES, lambda: len(check.findings.texts("difference")))
    thread = threading.Thread(target=check.run, name="logicalrep-self-check", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(_END_SECONDS)


@contextmanager
def _recorder(
    command: Sequence[str], dsn: str | Reader, run: Run, observed: RecorderMetrics, stop: Event
) -> Iterator[tuple[subprocess.Popen[bytes], Event]]:
    """Run `logicalrep record`; yield its process, and an event that is set when the process has ended.

    Ctrl-C in a terminal does not reach the recorder, because it runs in a POSIX session of its own (setsid).
    At a signal, this process stops the recorder. If this process is killed, the recorder ends when it reports
    its next event. The end of the `with` block stops the recorder, and waits for its end.

    Args:
        command: The command line; the recorder writes its events to standard output, as JSON.
        dsn: Connection string of libpq, or a `Reader` of its reference in a configuration file.
        run: The run whose output shows the recorder's events and errors.
        observed: Keeps the metrics of the recorder.
        stop: The event to set at a signal.
    """
    ended = Event()
    process = subprocess.Popen(
        command,
        env={name: value for name, value in os.environ.items() if not name.startswith(_OWN_SETTINGS)}
        | {_SERVICE: f"{os.environ.get(_SERVICE, 'logicalrep')}-recorder"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(format_options("record", {"dsn": dsn}))
    assert process.stdout is not None
    assert process.stderr is not None

    def show_events(events: IO[bytes]) -> None:
        try:
            for text in events:
                event = decode_event(text)
                observed.add(event)
                if run.output.is_json and event_level(event) >= logging.INFO:
                    run.output.print_event(event)
                elif is_line(event) and not isinstance(event, Lost):  # the recorder prints the error
                    run.output.warn(event_text(event))
        finally:
            events.close()  # after an error here, the recorder fails to report and ends
            process.wait()
            ended.set()

    def show_errors(errors: IO[bytes]) -> None:
        for line in errors:
            run.output.warn(printable(line.decode(errors="replace").rstrip("\n")))

    def end() -> None:
        stop.set()
        process.send_signal(signal.SIGTERM)

    threads = [
        threading.Thread(target=show, args=(stream,), daemon=True)
        for show, stream in ((show_events, process.stdout), (show_errors, process.stderr))
    ]
    for thread in threads:
        thread.start()
    stop_at_signals(end)
    try:
        yield process, ended
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait()
        except KeyboardInterrupt:  # a second Ctrl-C
            process.kill()
            raise
        finally:
            for thread in threads:
                thread.join()
            process.stderr.close()
