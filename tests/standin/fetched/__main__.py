"""Have fetched clients read messages from a stand-in server over dropped connections, and look up catalogs.

`python -m tests.standin.fetched [MESSAGES]` reads 200,000 messages by default, in transactions of 100. The
connection is dropped twice. A client must receive every transaction completely; only Debezium may receive
rows again that it has not stored the position of. Debezium also reads a scenario, and recordings that are
served with other options than those of the recording, over two dropped connections each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from logicalrep.messages import XLogData
from logicalrep.recording import record_capture_file
from logicalrep.standin import Faults, PluginOptions, RecordedSource, Source, StandIn
from logicalrep.standin.source import GeneratedSource
from logicalrep.synth import Scenario
from logicalrep.wire import format_lsn
from tests.standin.clients import SLOT, commit_end_lsns, create_slot
from tests.standin.fetched import node_client
from tests.standin.streams import TRANSACTION, Repeated
from tests.versions import OLDEST

CAPTURES: Final = Path(__file__).parents[2] / "captures"
TIMEOUT_SECONDS: Final = 300

DEBEZIUM_OPTIONS: Final = PluginOptions(proto_version=OLDEST, publication_names=("p",), messages=True)
"""The stream options that Debezium requests."""


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as folder, StandIn(recorded("pg18_p1", folder)) as server:
        for module in ("asyncpg_client", "pgjdbc_client"):
            began = time.monotonic()
            run(module, "look_up", "127.0.0.1", str(server.port), "postgres")
            print(f"{module}: looks up catalogs ({time.monotonic() - began:.1f} s)", flush=True)
    for name, read in READERS.items():
        stream = Repeated(count // (TRANSACTION + 2))
        faults = Faults(drop_after=int(count * 0.35) + 50)
        with tempfile.TemporaryDirectory() as folder, StandIn(stream, faults=faults) as server:
            create_slot(server.dsn)
            began = time.monotonic()
            found = read(server, stream, folder)
            seconds = time.monotonic() - began
        check(name, stream, found)
        print(
            f"{name}: {len(stream.payloads()):,} messages, {stream.transactions:,} transactions, none lost,"
            f" over {len(stream.started)} connections in {seconds:.1f} s",
            flush=True,
        )
    for name, make in SOURCES.items():
        with tempfile.TemporaryDirectory() as folder:
            print(f"Debezium, {name}: {follow_with_debezium(name, make(folder), folder)}", flush=True)


def check(name: str, stream: Repeated, found: dict[str, list[int]]) -> None:
    """Exit with an error unless a client has read all commits and rows over dropped connections."""
    if "commits" in found and found["commits"] != commit_end_lsns(stream.payloads()):
        sys.exit(f"{name} has not read each transaction once and in order")
    if found["rows"] != list(range(TRANSACTION, TRANSACTION * (stream.transactions + 1))):
        sys.exit(f"{name} has not read the rows that were served")
    if len(stream.started) < 3:
        sys.exit(f"{name} has connected {len(stream.started)} times: the connection was not dropped twice")


def read_with_pgjdbc(server: StandIn, stream: Repeated, folder: str) -> dict[str, list[int]]:
    arguments = ("127.0.0.1", str(server.port), "postgres", SLOT, format_lsn(stream.end_lsn))
    found: dict[str, list[int]] = json.loads(run("pgjdbc_client", "read", *arguments))
    return found


def read_with_debezium(server: StandIn, stream: Repeated, folder: str) -> dict[str, list[int]]:
    changes = run_debezium(server, TRANSACTION * stream.transactions, folder)
    return {"rows": list(changes.values())}


def run_debezium(server: StandIn, count: int, folder: str) -> dict[int, Any]:
    """Read half of the changes with Debezium, the others with a new engine; return row ids by change LSN."""
    address = ("127.0.0.1", str(server.port), "postgres")
    for part in (count // 2, count):
        run("debezium_client", "read", *address, SLOT, str(part), folder)
    return dict(json.loads(Path(folder, "changes.json").read_text()))


def follow_with_debezium(name: str, source: Source, folder: str) -> str:
    """Have Debezium read a source to its end over two dropped connections; return a line about the result."""
    watched: Any = Watched(source)
    messages = [one for one in watched.envelopes() if isinstance(one, XLogData)]
    lsns = [one.wal_start for one in messages if one.data[:1] in (b"I", b"U", b"D", b"T", b"M")]
    faults = Faults(drop_after=int(len(messages) * 0.35))
    with StandIn(watched, faults=faults) as server:
        create_slot(server.dsn)
        began = time.monotonic()
        found = run_debezium(server, len(set(lsns)), folder)
        seconds = time.monotonic() - began
    if watched.options != DEBEZIUM_OPTIONS:
        sys.exit(f"{name}: Debezium has requested {watched.options}")
    if list(found) != list(dict.fromkeys(lsns)):
        sys.exit(f"{name}: Debezium has not read each change in order: {set(lsns) ^ set(found)} differ")
    if len(watched.started) < 4:
        sys.exit(f"{name}: Debezium has connected {len(watched.started)} times: two engines and drops make 4")
    return (
        f"{len(messages):,} messages, {len(found):,} changes, none lost,"
        f" over {len(watched.started)} connections in {seconds:.1f} s"
    )


class Watched:
    """A source that stores the LSN at which each connection starts, in the attribute `started`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.started: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def start(self, options: PluginOptions, after_lsn: int) -> Iterator[Any]:
        self.options = options
        self.started.append(after_lsn)
        return self._source.start(options, after_lsn)

    def envelopes(self) -> Iterator[Any]:
        """Return all envelopes of the stream that Debezium requests."""
        return takewhile(lambda one: isinstance(one, XLogData), self._source.start(DEBEZIUM_OPTIONS, 0))


def recorded(name: str, folder: str) -> RecordedSource:
    """Return a source that serves a recording of a capture file, made in a folder."""
    path = Path(folder, "recording")
    record_capture_file(CAPTURES / f"{name}.jsonl.gz", path)
    return RecordedSource(path)


def scenario() -> Scenario:
    """Return a scenario with pairs of interleaved transactions."""
    db = Scenario()
    orders = db.table("public.orders", id="int8 key", note="text")
    for number in range(100):
        first = 1000 * number
        one = db.transaction()
        with db.transaction(origin="elsewhere", origin_lsn=first + 1) as other:
            for row in range(first, first + 50):
                one.insert(orders, id=row, note="of the first transaction")
                other.insert(orders, id=row + 500, note="of the second transaction")
            other.message("audit", "inside")
        one.update(orders, {"id": first}, note="changed")
        one.delete(orders, {"id": first + 1})
        one.commit()
        db.message("audit", "outside")
    with db.transaction() as last:
        last.truncate(orders)
    return db


SOURCES: Final[Mapping[str, Callable[[str], Source]]] = {
    "scenario": lambda folder: GeneratedSource(scenario()),
    "recording of version 4, parallel": lambda folder: recorded("pg18_ws_p4_par_2pc_msg", folder),
    "recording of version 2, streaming, without LSNs": lambda folder: recorded("pg18_p2_stream_msg", folder),
}
"""Functions that make a source in a folder, by description. Debezium requests version 1 without options."""


READERS: Final = {
    "pg-logical-replication of npm": node_client.read,
    "pgjdbc": read_with_pgjdbc,
    "Debezium": read_with_debezium,
}
"""Functions that have a client read the slot, and return the commits and rows that it has read."""


def run(module: str, *arguments: str) -> str:
    """Run a client, and return its standard output."""
    command = [sys.executable, "-m", f"tests.standin.fetched.{module}", *arguments]
    ran = subprocess.run(
        command,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if ran.returncode:
        sys.exit(f"{module} has failed:\n{(ran.stdout + ran.stderr)[-3000:]}")
    return ran.stdout


if __name__ == "__main__":
    main()
