"""The npm package pg-logical-replication as a benchmark implementation, in long-lived node processes.

The package parses values by their column types. It is measured twice: with the real types, and with all
columns declared as text, so that it returns strings as logicalrep does and does not parse dates.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from benchmarks.machine import FOLDER
from benchmarks.streams import Batch, Row
from benchmarks.timing import Implementation, Run
from logicalrep import messages as m, v4
from tests.standin.fetched.node_client import INSTALL

PACKAGE: Final = "pg-logical-replication"
SCRIPT: Final = Path(__file__).with_suffix(".js")
TEXT: Final = 25
WARM_UP: Final = 2.0
"""Seconds for which node decodes a batch before it is timed, so that its JavaScript code is compiled."""


def installed() -> Path | None:
    """Install the npm package unless it is installed; return the folder `node_modules`.

    Return None if node or npm is missing, or if the installation fails.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return None
    folder = FOLDER / "node"
    modules = folder / "node_modules"
    if not modules.joinpath(PACKAGE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"HOME": str(folder), "npm_config_cache": str(folder / "cache")}
        command = [npm, "--prefix", str(folder), *INSTALL]
        if subprocess.run(command, cwd=folder, env=environment, timeout=120, check=False).returncode:
            return None
    return modules


@contextmanager
def implementation(modules: Path, *, strings: bool) -> Iterator[Implementation]:
    """Yield a benchmark of the npm package pg-logical-replication, which runs in a new node process.

    Args:
        modules: The folder node_modules that contains the package.
        strings: Whether to declare all columns as text.
    """
    environment = os.environ | {"NODE_PATH": str(modules)}
    with (
        tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder,
        subprocess.Popen(
            ["node", str(SCRIPT)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        node = Node(process, Path(folder, "messages"), strings)
        yield Implementation("Node, strings" if strings else "Node", node.prepare, node.result)
        process.stdin.close()  # type: ignore[union-attr]


class Node:
    """A node process that runs the package on one batch at a time."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path, strings: bool) -> None:
        self._process, self._path, self._strings = process, path, strings

    def prepare(self, batch: Batch) -> Run:
        """Load a batch and warm node up; return a function that decodes it and returns the seconds taken."""
        self._load(batch, self._strings)
        elapsed = 0.0
        while elapsed < WARM_UP:
            elapsed += self._ask("run")
        return lambda: float(self._ask("run"))

    def result(self, batch: Batch) -> list[Row]:
        """Return for each tuple of a batch the cells that the package decodes."""
        self._load(batch, strings=True)  # JavaScript dates have no microseconds
        return [tuple(map(_cell, cells)) for cells in self._ask("read")]

    def _load(self, batch: Batch, strings: bool) -> None:
        relation = batch.shape.relation
        messages = [all_text(relation) if strings else relation, *batch.data.to_pylist()]
        self._path.write_bytes(b"".join(len(one).to_bytes(4, "big") + one for one in messages))
        self._ask(f"load\t{self._path}")

    def _ask(self, command: str) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(command.encode() + b"\n")
        stdin.flush()
        if not (answer := stdout.readline()):
            raise RuntimeError(f"the node process of {PACKAGE} ended: its error is above")
        return msgspec.json.decode(answer)


def all_text(relation: bytes) -> bytes:
    """Return a copy of an encoded Relation message in which all columns have the type text."""
    message = v4.decode(relation)
    assert isinstance(message, m.Relation)
    return v4.encode(replace(message, columns=tuple(replace(one, type_oid=TEXT) for one in message.columns)))


def _cell(value: Any) -> str | bytes | None:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
