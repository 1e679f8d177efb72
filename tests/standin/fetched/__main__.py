"""Have fetched clients read messages from a stand-in server over dropped connections, and look up catalogs.

`python -m tests.standin.fetched [MESSAGES]` reads 200,000 messages by default, in transactions of 100. The
connection is dropped twice. A client must receive every transaction completely; only Debezium may receive
rows again that it has not stored the position of.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from pgoutput.standin import Faults, RecordedSource, StandIn
from pgoutput.wire import format_lsn
from tests.standin.clients import SLOT, commit_end_lsns, create_slot
from tests.standin.fetched import node_client
from tests.standin.streams import TRANSACTION, Repeated

CAPTURE: Final = Path(__file__).parents[2] / "captures/pg18_p1.jsonl.gz"
TIMEOUT_SECONDS: Final = 300


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as folder, StandIn(RecordedSource(CAPTURE)) as server:
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


def check(name: str, stream: Repeated, found: dict[str, list[int]]) -> None:
    """Compare the commits and rows that a client has read with those of the stream."""
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
    """Read one half of the stream, and the other half with a new engine. Return the distinct rows."""
    rows: list[int] = []
    count = TRANSACTION * stream.transactions
    for part in (count // 2, count):
        wanted = str(part - len(set(rows)))
        run("debezium_client", "read", "127.0.0.1", str(server.port), "postgres", SLOT, wanted, folder)
        rows += json.loads(Path(folder, "rows.json").read_text())
    return {"rows": list(dict.fromkeys(rows))}


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
