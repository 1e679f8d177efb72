"""Test the npm package pg-logical-replication with a stand-in server. Run by `make clients`.

The client reads 100,000 messages over connections that are dropped. The client must receive each
transaction exactly once and completely. node and npm are required; the client is installed from npm's
registry into a temporary folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pgoutput.standin import Faults, StandIn
from pgoutput.wire import parse_lsn
from tests.standin.clients import SLOT, commit_end_lsns, create_slot
from tests.standin.streams import TRANSACTION, Repeated

PACKAGES: Final = ("pg-logical-replication@2.5.0", "pg@8.16.3")
"""Pinned npm packages. Their dependencies are not pinned."""

INSTALL: Final = (
    "install",
    "--no-save",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
    "--fetch-retries=1",
    *PACKAGES,
)

SCRIPT: Final = """
const { LogicalReplicationService, PgoutputPlugin } = require('pg-logical-replication');
const [host, port, slot, last] = process.argv.slice(2);
const config = { host, port: Number(port), user: 'postgres', database: 'postgres' };
let connections = 0, commits = [], rows = [], pending = [];

async function connect() {
  connections += 1;
  const service = new LogicalReplicationService(config, { acknowledge: { auto: false, timeoutSeconds: 0 } });
  const ended = new Promise((resolve) => {
    service.on('data', async (lsn, message) => {
      if (message.tag === 'begin') pending = [];
      if (message.tag === 'insert') pending.push(message.new.id);
      if (message.tag === 'commit') {
        rows.push(...pending);
        commits.push(message.commitEndLsn);
        await service.acknowledge(message.commitEndLsn);
        if (message.commitEndLsn === last) { await service.stop(); resolve(true); }
      }
    });
    service.on('error', () => resolve(false));
  });
  const plugin = new PgoutputPlugin({ protoVersion: 1, publicationNames: ['p'] });
  service.subscribe(plugin, slot).catch(() => {});
  const finished = await ended;
  await service.stop().catch(() => {});
  return finished;
}

(async () => {
  while (!(await connect())) await new Promise((resolve) => setTimeout(resolve, 100));
  process.stdout.write(JSON.stringify({ connections, commits, rows }), () => process.exit(0));
})();
"""


def main() -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        sys.exit("node and npm are required for pg-logical-replication")
    stream = Repeated(1_000)
    payloads = stream.payloads()
    last = f"{stream.end_lsn >> 32:08X}/{stream.end_lsn & 0xFFFFFFFF:08X}"
    with tempfile.TemporaryDirectory() as folder, StandIn(stream, faults=Faults(drop_after=30_050)) as server:
        _run("npm cannot install the client", [npm, *INSTALL], folder)
        (Path(folder) / "client.js").write_text(SCRIPT)
        create_slot(server.dsn)
        command = [node, "client.js", "127.0.0.1", str(server.port), SLOT, last]
        found = json.loads(_run("the client has failed", command, folder))
    ended = list(map(parse_lsn, found["commits"]))
    if ended != commit_end_lsns(payloads):
        sys.exit("the client has not read each transaction once and in order")
    if found["rows"] != list(range(TRANSACTION, TRANSACTION * (stream.transactions + 1))):
        sys.exit("the transactions do not have the rows that were served")
    if found["connections"] != 4:
        sys.exit(f"expected 4 connections after three drops, not {found['connections']}")
    print(
        f"pg-logical-replication has read {len(payloads):,} messages, {len(ended):,} transactions, "
        f"each of them once, over {found['connections']} connections"
    )


def _run(failure: str, command: list[str], folder: str) -> str:
    """Run a program in a folder, with the folder as its home directory, and return its output."""
    environment = os.environ | {"HOME": folder, "npm_config_cache": f"{folder}/cache"}
    try:
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"{failure}: timeout after 2 minutes")
    if ran.returncode:
        sys.exit("\n".join([f"{failure}:", *ran.stderr.strip().splitlines()[:5]]))
    return ran.stdout


if __name__ == "__main__":
    main()
