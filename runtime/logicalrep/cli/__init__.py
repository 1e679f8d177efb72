"""The command line `logicalrep`. No other package of the project parses arguments or prints."""

from __future__ import annotations

import errno
import io
import os
import signal
import socket
import sys
from typing import Final

from logicalrep._extras import MissingExtraError, install_line, require
from logicalrep.cli.common.pandas import hide_pandas
from logicalrep.cli.common.printing import complain, version_line
from logicalrep.cli.common.signals import interrupt
from logicalrep.errors import ChangesLost, ConnectionLost, LogicalrepError, RecordingInUse, ReplicationError

_PASSING: Final = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),  # a full disk
    *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    errno.EADDRINUSE,  # the previous process may still be ending
    errno.ETIMEDOUT,
    *(socket.EAI_AGAIN, socket.EAI_NONAME),  # a name service that fails
)
"""Values of errno for temporary conditions: the same command can succeed later."""


def main() -> None:
    """Run the command `logicalrep` with the arguments in `sys.argv`.

    An error is printed as one line on standard error. The exit code is 3 for a temporary error, such as a
    lost connection or a full disk, 2 for any other error, 130 after SIGINT or SIGTERM, and 1 if the program
    that reads standard output has ended, or if the command has found a problem, such as a failed table.
    """
    _open_standard_streams()
    if "replicate" in sys.argv[1:2]:
        # Arrow's own allocator returns freed memory at once, which costs a replica a seventh more CPU time.
        # Other commands keep it: with the system's allocator, a recorder is not faster and needs more memory.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # Rich would print nothing in a terminal of width 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for characters that the locale cannot show
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, interrupt)
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    try:
        try:
            _run_command()
        finally:
            sys.stdout.flush()
    except MissingExtraError as error:
        extras = dict.fromkeys(("cli", error.extra))
        complain(f"{error.name} is missing: {install_line(*extras)}")
        sys.exit(2)
    except BrokenPipeError:  # the program that reads standard output has ended
        _flush_stdout()
        sys.exit(1)
    except (LogicalrepError, OSError) as error:
        _flush_stdout()
        closed = isinstance(error, OSError) and error.errno == errno.EBADF
        complain("standard output is closed" if closed else str(error))
        sys.exit(3 if _may_pass(error) else 2)


def _may_pass(error: LogicalrepError | OSError) -> bool:
    """Return whether the same command may succeed later, so that a service manager should restart it."""
    if isinstance(error, ReplicationError | RecordingInUse):
        return not isinstance(error, ChangesLost)
    # Arrow's errors of object stores have no errno, so an error without errno counts as temporary if it has a
    # URL. This is wrong for a damaged object, whose error is the same.
    passing = (*_PASSING, None) if "://" in str(error) else _PASSING
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, ConnectionLost) or (isinstance(reason, OSError) and reason.errno in passing):
            return True
        reason = reason.__cause__ or reason.__context__
    return False


def _run_command() -> None:
    if sys.argv[1:] == ["--version"]:  # works without the extra `cli`
        print(version_line())
        return
    hide_pandas()
    require("cli", "typer", "rich")
    from logicalrep.cli.app import app

    app()


def _open_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that the parent process closed.

    If standard output stayed closed, a file that is opened later would get file descriptor 1, and printed
    text would be written into that file. Writing to the replaced standard output fails; text for the replaced
    standard error is discarded.
    """
    for number, name, mode in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, mode), number)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def _flush_stdout() -> None:
    """Flush standard output; if that fails, redirect it to /dev/null: Python's flush at exit must succeed."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
