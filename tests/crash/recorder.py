"""A recorder that dies at a chosen moment.

`python -m tests.crash.recorder DSN FOLDER OPTIONS PUBLICATIONS FAILOVER UNTIL DIE_AT BYTES SECONDS`

BYTES and SECONDS are the size and age at which a segment ends. It ends with its parent, whose end of the pipe
is its standard input.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

import msgspec

from pgoutput.recorder import Event, Recorder, RecorderOptions

SLOT: Final = "crash"
PUBLICATION: Final = "crash"


def main() -> None:
    dsn, folder, options, publications, failover, until, die_at, size, seconds = sys.argv[1:]
    threading.Thread(target=end_with_parent, daemon=True).start()
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
        on_event=tell,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: recorder.stop())
    if int(die_at):
        die_when_files_are_touched(folder, int(die_at))
    recorder.run(until="now" if until == "now" else None)


def tell(event: Event) -> None:
    os.write(1, msgspec.json.encode(event) + b"\n")


def end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def die_when_files_are_touched(folder: str, times: int) -> None:
    """Die at the n-th time that something in the folder is opened, renamed, made, listed or removed."""
    left = times

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event.startswith(("open", "os.", "shutil.")) and arguments and _name(arguments[0], folder):
            left -= 1
            if left == 0:
                os.write(2, f"killed before {event} of {_name(arguments[0], folder)}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _name(path: object, folder: str) -> str:
    """The path inside the folder, if it is there."""
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return f".{text.removeprefix(folder)}" if text.startswith(folder) else ""


if __name__ == "__main__":
    main()
