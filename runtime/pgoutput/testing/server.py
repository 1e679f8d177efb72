"""A stand-in server in a process of its own.

Clients may block the interpreter while they wait for the server: libpq, as psycopg calls it, holds the GIL at
places. A stand-in in a thread beside them could never answer then.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from pgoutput.standin import Faults, RecordedSource, StandIn
from pgoutput.synth import Scenario

_PATIENCE: Final = 10.0
"""Seconds that it may take to end."""


class Server:
    """Serves a scenario or a recording to replication clients, on a free port of this machine.

    A context manager: it listens when the block begins, and is gone when it ends, or when this process ends.
    A scenario is served as it stands when the block begins.

    Attributes:
        dsn: Where it is, as libpq takes it, the password included.
        port: Its port on 127.0.0.1.

    Args:
        source: A scenario, or the path of a capture file, of a segment or of the folder of a recording.
        faults: What goes wrong on purpose.
        user: The only user that may connect; without one, everybody may.
        password: Its password.
        sender_timeout: Seconds after which a silent client is given up (wal_sender_timeout); 0 for never.

    Raises:
        RecordingError: The recording cannot be served.
        TypeError: `faults` is not such.
        ValueError: A user has no password, or a password no user.
    """

    def __init__(
        self,
        source: Scenario | str | Path,
        *,
        faults: Faults | None = None,
        user: str | None = None,
        password: str | None = None,
        sender_timeout: float = 60.0,
    ) -> None:
        if not isinstance(faults, Faults | None):
            raise TypeError(f"faults is a pgoutput.standin.Faults, not {type(faults).__name__}")
        self.dsn = ""
        self.port = 0
        self._source = source
        self._options = {
            "faults": faults,
            "user": user,
            "password": password,
            "sender_timeout": sender_timeout,
        }

    def __enter__(self) -> Server:
        source = _closed(self._source) if isinstance(self._source, Scenario) else self._source
        pipe = subprocess.PIPE
        with ExitStack() as stack:
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pgoutput.testing.server"], stdin=pipe, stdout=pipe
            )
            stack.callback(self._end)
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump((source, self._options), process.stdin)
            process.stdin.flush()
            try:
                said = pickle.load(process.stdout)
            except EOFError:
                raise ChildProcessError("the process of the server was ended") from None
            if isinstance(said, BaseException):
                raise said
            self.port, self.dsn = said
            self._running = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()

    def _end(self) -> None:
        """Close its standard input, which it waits for."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _closed(scenario: Scenario) -> Scenario:
    """The scenario without its open transactions, which cannot be pickled: nothing more is done in it."""
    closed = Scenario(
        **msgspec.structs.asdict(scenario.options),
        publish_via_partition_root=scenario.publish_via_partition_root,
        logical_decoding_work_mem=scenario.logical_decoding_work_mem,
    )
    closed.wal = scenario.wal
    return closed


def main() -> None:
    """Serve what standard input has, until it is closed; standard output is told where, or why not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began this ends it
    out = sys.stdout.buffer

    def say(said: Any) -> None:
        pickle.dump(said, out)
        out.flush()

    try:
        source, options = pickle.load(sys.stdin.buffer)
        served = source if isinstance(source, Scenario) else RecordedSource(source)
        with StandIn(served, **options) as standin:
            say((standin.port, standin.dsn))
            sys.stdin.buffer.read()
    except Exception as error:
        say(error)


if __name__ == "__main__":
    main()
