"""Run a stand-in server in a process of its own.

Clients may hold the GIL while they wait for the server: psycopg does so in some calls of libpq. A stand-in
server in a thread of the client's process could then never respond.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from logicalrep.messages import Relation
from logicalrep.standin import Faults, RecordedSource, StandIn
from logicalrep.synth import Scenario

_SHUTDOWN_SECONDS: Final = 10.0
"""Seconds that the server's process has to end; after that, the process is killed."""


class Server:
    """A stand-in server in a process of its own, on a free port of 127.0.0.1. Use as a context manager.

    The server listens until the context or the Python process that entered the context ends. Changes of a
    scenario after the context is entered are not served.

    Attributes:
        dsn: Connection string (libpq keywords) of the server, including the password.
        port: Port on 127.0.0.1.

    Args:
        source: A scenario, or the path of a capture file, of a segment, or of the folder of a recording.
        faults: Faults to inject; None for no faults.
        user: Name of the only user that may connect; None to accept everybody.
        password: Password of the user; None if `user` is None.
        wal_sender_timeout: Seconds after which a silent client is disconnected; 0 to never disconnect.

    Raises:
        TypeError: `faults` is not a `Faults`.
        RecordingError: On entry: the recording cannot be served.
        ValueError: On entry: a user is given without a password, or a password without a user.
    """

    def __init__(
        self,
        source: Scenario | str | Path,
        *,
        faults: Faults | None = None,
        user: str | None = None,
        password: str | None = None,
        wal_sender_timeout: float = 60.0,
    ) -> None:
        if not isinstance(faults, Faults | None):
            raise TypeError(f"faults must be a logicalrep.standin.Faults, not {type(faults).__name__}")
        self.dsn: str = ""
        self.port: int = 0
        self._source = source
        self._options = {
            "faults": faults,
            "user": user,
            "password": password,
            "wal_sender_timeout": wal_sender_timeout,
        }

    def __enter__(self) -> Server:
        source = (
            _without_open_transactions(self._source) if isinstance(self._source, Scenario) else self._source
        )
        pipe = subprocess.PIPE
        with ExitStack() as stack:
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "logicalrep.testing.server"], stdin=pipe, stdout=pipe
            )
            stack.callback(self._stop)
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump((source, self._options), process.stdin)
            process.stdin.flush()
            try:
                response = pickle.load(process.stdout)
            except EOFError:
                raise ChildProcessError(
                    "the process of the stand-in server ended before it accepted connections; see its stderr"
                ) from None
            if isinstance(response, BaseException):
                raise response
            self.port, self.dsn = response
            self._running = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()

    def _stop(self) -> None:
        """End the server's process by closing its standard input; kill it after `_SHUTDOWN_SECONDS`."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_SHUTDOWN_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


class _ServedScenario(Scenario):
    """A scenario that can be pickled: it has no open transactions, and a fixed list of published tables."""

    published: Sequence[Relation] = ()


def _without_open_transactions(scenario: Scenario) -> Scenario:
    """Return a copy of the scenario without its open transactions, which cannot be pickled."""
    copy = _ServedScenario(
        **msgspec.structs.asdict(scenario.options),
        server=scenario.server,
        publish_via_partition_root=scenario.publish_via_partition_root,
        logical_decoding_work_mem=scenario.logical_decoding_work_mem,
    )
    copy.wal, copy.published = scenario.wal, scenario.published
    return copy


def main() -> None:
    """Run a stand-in server in this process until standard input is closed.

    The source and options of `Server` are read from standard input as a pickle. The port and DSN, or an
    exception, are written to standard output as a pickle.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this process
    out = sys.stdout.buffer

    def respond(response: Any) -> None:
        pickle.dump(response, out)
        out.flush()

    try:
        source, options = pickle.load(sys.stdin.buffer)
        served = source if isinstance(source, Scenario) else RecordedSource(source)
        with StandIn(served, **options) as standin:
            respond((standin.port, standin.dsn))
            sys.stdin.buffer.read()
    except Exception as error:
        respond(error)


if __name__ == "__main__":
    main()
