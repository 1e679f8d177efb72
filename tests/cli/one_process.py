"""Run many `logicalrep` commands in one process, so that all of them share one Java process.

`python -m tests.cli.one_process FD` reads arguments as JSON lines from standard input, and writes exit codes
as lines to the file descriptor FD.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Self

from logicalrep.cli import main


class CommandProcess:
    """A process that runs `logicalrep` commands one after another; a context manager that ends the process.

    Args:
        folder: Folder for the files that the process and its Java write standard output and error to.
        patience: Seconds that a command may take.

    Attributes:
        unread: Standard output and standard error after the last command, when the process has ended.
    """

    def __init__(self, folder: Path, patience: float) -> None:
        self._outputs = folder / "stdout", folder / "stderr"
        self._read = [0, 0]
        self._patience = patience
        self.unread = "", ""

    def __enter__(self) -> Self:
        self._codes, codes = os.pipe()
        out, err = (path.open("wb") for path in self._outputs)
        with out, err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.one_process", str(codes)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                pass_fds=[codes],
                text=True,
            )
        os.close(codes)
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._process.communicate(timeout=self._patience)
        finally:
            self._process.kill()
            os.close(self._codes)
            self.unread = self._new_output(0), self._new_output(1)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `logicalrep` with these arguments; return its exit code, standard output and standard error."""
        assert self._process.stdin is not None
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._codes], [], [], self._patience)
        assert ready, f"timeout after {self._patience} seconds: {arguments}"
        code = os.read(self._codes, 100)
        out, err = (self._new_output(number) for number in range(2))
        assert code, f"the process has ended: {err}"
        return subprocess.CompletedProcess(arguments, int(code), out, err)

    def _new_output(self, number: int) -> str:
        with self._outputs[number].open("rb") as file:
            file.seek(self._read[number])
            new = file.read()
        self._read[number] += len(new)
        return new.decode()


def run_main() -> object:
    """Run `logicalrep` with the arguments in `sys.argv` in this process; return its exit code."""
    _build_commands_once()
    try:
        main()
        code: object = 0
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    return code


@cache
def _build_commands_once() -> None:
    """Make Typer build the parsers of all commands only in the first run: building takes 50 ms of CPU."""
    import typer.main

    typer.main.get_command = cache(typer.main.get_command)


def serve(codes: int) -> None:
    """Run a `logicalrep` command per line of standard input; write its exit code to `codes`."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for line in sys.stdin:
        sys.argv = ["logicalrep", *json.loads(line)]
        code = run_main()
        # A command changes these for its process, and the next command must find them as in a new process.
        logging.disable(logging.NOTSET)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.write(codes, f"{code}\n".encode())


if __name__ == "__main__":
    serve(int(sys.argv[1]))
