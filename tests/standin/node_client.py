"""npm's pg-logical-replication reads from a stand-in: `python -m tests.standin.node_client`.

It reads 100,000 messages over connections that break, each transaction once. It needs node and npm, and
fetches the client from npm's registry.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pgoutput.standin import Faults, StandIn
from tests.standin.clients import SLOT, create_slot
from tests.standin.streams import Repeated

PACKAGES: Final = ("pg-logical-replication@2.5.0", "pg@8.16.3")
"""As npm has them; what they need of others is not pinned."""

SCRIPT: Final = """
const { LogicalReplicationService, PgoutputPlugin } = require('pg-logical-replication');
const [host, port, slot, last] = process.argv.slice(2);
const config = { host, port: Number(port), user: 'postgres', database: 'postgres' };
let changes = 0, commits = [], connections = 0;

async function connect() {
  connections += 1;
  const service = new LogicalReplicationService(config, { acknowledge: { auto: false, timeoutSeconds: 0 } });
  const ended = new Promise((resolve) => {
    service.on('data', async (lsn, message) => {
      if (message.tag === 'insert') changes += 1;
      if (message.tag === 'commit') {
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
  console.log(JSON.stringify({ changes, connections, commits: commits.length, last: commits.at(-1),
    distinct: new Set(commits).size }));
  process.exit(0);
})();
"""


def main() -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise SystemExit("node and npm are needed: this reads with npm's pg-logical-replication")
    stream = Repeated(1_000)
    last = f"{stream.end_lsn >> 32:08X}/{stream.end_lsn & 0xFFFFFFFF:08X}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install = [npm, "install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error", *PACKAGES]
        subprocess.run(install, cwd=folder, check=True)
        (folder / "client.js").write_text(SCRIPT)
        with StandIn(stream, faults=Faults(drop_after=30_050)) as server:
            create_slot(server.dsn)
            command = [node, "client.js", "127.0.0.1", str(server.port), SLOT, last]
            ran = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, timeout=120, check=True)
            found = json.loads(ran.stdout)
    print(f"pg-logical-replication: {found}")
    if found["distinct"] != stream.transactions or found["last"] != last:
        sys.exit("it has not read all")
    if found["connections"] != 4:
        sys.exit("it was to be dropped three times")


if __name__ == "__main__":
    main()
