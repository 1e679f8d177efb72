"""A recorder process that kills itself at a given file operation.

`python -m tests.crash.recorder DSN FOLDER OPTIONS PUBLICATIONS FAILOVER UNTIL DIE_AT BYTES SECONDS`

FOLDER may be a URL of an object store; the working folder is then in the folder XDG_STATE_HOME. DIE_AT is
the number of the file operation in FOLDER, or in XDG_STATE_HOME, at which the process kills itself, or 0 for
never. BYTES and SECONDS are the size and age at which the recorder ends a segment. The process exits when its
standard input, a pipe from its parent, is closed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Final

import msgspec

from logicalrep.errors import RecordingInUse
from logicalrep.recorder import Event, Recorder, RecorderOptions
from logicalrep.recorder.storage import lease

SLOT: Final = "crash"
PUBLICATION: Final = "crash"


def main() -> None:
    dsn, folder, options, publications, failover, until, die_at, size, seconds = sys.argv[1:]
    threading.Thread(target=exit_with_parent, daemon=True).start()
    if "://" in folder:
        lease.LEASE_SECONDS = 2.0  # the next recorder waits this long for the lease of a killed one
    recorder = Recorder(
        dsn,
        SLOT,
        publications.split(","),
        folder,
        options=msgspec.json.decode(options, type=RecorderOptions),
        snapshot=True,
        failover=failover == "failover",
        segment_bytes=int(size),
        segment_seconds=float(seconds),
        on_event=print_event,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: recorder.stop())
    if int(die_at):
        die_at_file_operation(os.environ["XDG_STATE_HOME"] if "://" in folder else folder, int(die_at))
    while True:
        try:
            recorder.run(until="now" if until == "now" else None)
            break
        except RecordingInUse:  # `logicalrep verify` records up to an LSN
            time.sleep(0.1)


def print_event(event: Event) -> None:
    os.write(1, msgspec.json.encode(event) + b"\n")


def exit_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def die_at_file_operation(folder: str, number: int) -> None:
    """Kill this process when it opens, renames, creates or removes a file in `folder` for the n-th time."""
    left = number

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event.startswith(("open", "os.", "shutil.")) and arguments and _name(arguments[0], folder):
            left -= 1
            if left == 0:
                os.write(2, f"killed before {event} of {_name(arguments[0], folder)}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _name(path: object, folder: str) -> str:
    """Return a path relative to the recording's folder; an empty string if the path is outside the folder."""
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return f".{text.removeprefix(folder)}" if text.startswith(folder) else ""


if __name__ == "__main__":
    main()
