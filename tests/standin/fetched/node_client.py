"""Read a slot with the npm package pg-logical-replication.

node and npm are required. The client is installed from npm's registry into a temporary folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from logicalrep.standin import StandIn
from logicalrep.wire import parse_lsn
from tests.standin.clients import SLOT
from tests.standin.streams import Repeated

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
let commits = [], rows = [], pending = [];

async function connect() {
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
  process.stdout.write(JSON.stringify({ commits, rows }), () => process.exit(0));
})();
"""


def read(server: StandIn, stream: Repeated, folder: str) -> dict[str, list[int]]:
    """Install the client in a folder, read the slot with it, and return the commits and rows."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        sys.exit("node and npm are required for pg-logical-replication")
    last = f"{stream.end_lsn >> 32:08X}/{stream.end_lsn & 0xFFFFFFFF:08X}"
    _run("npm cannot install the client", [npm, *INSTALL], folder)
    (Path(folder) / "client.js").write_text(SCRIPT)
    found = json.loads(
        _run("the client has failed", [node, "client.js", "127.0.0.1", str(server.port), SLOT, last], folder)
    )
    return {"commits": list(map(parse_lsn, found["commits"])), "rows": found["rows"]}


def _run(failure: str, command: list[str], folder: str) -> str:
    """Run a program in a folder, with the folder as its home directory, and return its output."""
    environment = os.environ | {"HOME": folder, "npm_config_cache": f"{folder}/cache"}
    try:
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"{failure}: timeout after 5 minutes")
    if ran.returncode:
        sys.exit("\n".join([f"{failure}:", *ran.stderr.strip().splitlines()[:5]]))
    return ran.stdout
