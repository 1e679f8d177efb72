"""npm's pg-logical-replication, where there are node and npm, in processes of node that stay warm.

It parses values by the types of their columns. So it reads twice: as it comes, and told that all columns are
text, so that it gives strings, as our codec does, and is not slowed by making dates.
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
from benchmarks.turns import Contestant, Run
from pgoutput import messages as m
from pgoutput import v4
from tests.standin.node_client import INSTALL

PACKAGE: Final = "pg-logical-replication"
SCRIPT: Final = Path(__file__).with_suffix(".js")
TEXT: Final = 25
WARM: Final = 2.0
"""Seconds that it reads before it is measured, so that all is compiled."""


def installed() -> Path | None:
    """Where the package is, which is fetched if need be; None where node, npm or the network are missing."""
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
def contestant(modules: Path, *, strings: bool) -> Iterator[Contestant]:
    """A process, while it lasts; it reads values as strings, or as it comes."""
    environment = os.environ | {"NODE_PATH": str(modules)}
    with (
        tempfile.TemporaryDirectory(prefix="pgoutput-bench-") as folder,
        subprocess.Popen(
            ["node", str(SCRIPT)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        node = Node(process, Path(folder, "messages"), strings)
        yield Contestant("Node, strings" if strings else "Node", node.prepare, node.result)
        process.stdin.close()  # type: ignore[union-attr]


class Node:
    """A process: it has one batch at a time."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path, strings: bool) -> None:
        self._process, self._path, self._strings = process, path, strings

    def prepare(self, batch: Batch) -> Run:
        self._load(batch, self._strings)
        warm = 0.0
        while warm < WARM:
            warm += self._ask("run")
        return lambda: float(self._ask("run"))

    def result(self, batch: Batch) -> list[Row]:
        self._load(batch, strings=True)  # dates of JavaScript have no microseconds
        return [tuple(map(_cell, cells)) for cells in self._ask("read")]

    def _load(self, batch: Batch, strings: bool) -> None:
        relation = batch.shape.relation
        messages = [_all_text(relation) if strings else relation, *batch.data.to_pylist()]
        self._path.write_bytes(b"".join(len(one).to_bytes(4, "big") + one for one in messages))
        self._ask(f"load\t{self._path}")

    def _ask(self, command: str) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(command.encode() + b"\n")
        stdin.flush()
        if not (answer := stdout.readline()):
            raise RuntimeError(f"{PACKAGE} has failed")
        return msgspec.json.decode(answer)


def _all_text(relation: bytes) -> bytes:
    """The same Relation, but that all of its columns are text."""
    message = v4.decode(relation)
    assert isinstance(message, m.Relation)
    return v4.encode(replace(message, columns=tuple(replace(one, type_oid=TEXT) for one in message.columns)))


def _cell(value: Any) -> str | bytes | None:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
