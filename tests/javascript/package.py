"""Build the npm package into `dist/`, and try it as a user does: `make typescript`.

npm fetches the TypeScript compiler and prettier, which check the sources. The package is then installed into
an empty folder, where the example of `docs/howto/typescript.md` is checked by the oldest compiler, compiled
and run, damaged messages are decoded as in Python, and the example of the package's README follows a
stand-in server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Final

import psycopg

from logicalrep.standin import StandIn
from logicalrep.testing import shop
from tests.javascript.compare import compare
from tests.javascript.inputs import damaged
from tests.javascript.peer import NODE, SOURCES, Peer

ROOT: Final = Path(__file__).parents[2]
DIST: Final = ROOT / "dist"
README: Final = ROOT / "generated/javascript/README.md"
PAGE: Final = ROOT / "docs/howto/typescript.md"
NPM: Final = NODE.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
TOOLS: Final = ("prettier@3.10.1", "typescript@5.9.3")
OLDEST_COMPILER: Final = "typescript@4.7.4"
COMPILER_OPTIONS: Final = ("--strict", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom")
CHECK_OPTIONS: Final = (
    *("--noEmit", "--allowJs", "--checkJs", "--noImplicitAny", "false"),
    *("--noUnusedLocals", "--noUnusedParameters"),
)
"""Options of the compiler for the sources, which are JavaScript: most of their types are inferred."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sources, home = Path(folder, "sources"), Path(folder, "home")
        shutil.copytree(SOURCES.parent, sources)
        npm(sources, "install", "--no-save", *TOOLS)
        tool(sources, "prettier", "--check", "--print-width", "110", "--log-level", "warn", "*.json", "src")
        tool(sources, "tsc", *COMPILER_OPTIONS, *CHECK_OPTIONS, "src/index.js", "src/index.d.ts")
        DIST.mkdir(exist_ok=True)
        for old in DIST.glob("logicalrep-*.tgz"):
            old.unlink()
        npm(sources, "pack", "--pack-destination", DIST)
        (archive,) = DIST.glob("logicalrep-*.tgz")
        home.mkdir()
        (home / "package.json").write_text('{"type": "module"}')
        npm(home, "install", archive)
        (example,) = re.findall(r"^```typescript\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        (home / "example.ts").write_text(example)
        shutil.copytree(sources / "node_modules/typescript", home / "node_modules/typescript")
        tool(home, "../typescript/bin/tsc", *COMPILER_OPTIONS, "example.ts")
        run([NODE, "example.js"], home)
        npm(home, "install", "--no-save", OLDEST_COMPILER, "pg@8")
        oldest = ("--noEmit", *COMPILER_OPTIONS, "--module", "es2022", "--moduleResolution", "node")
        tool(home, "../typescript/bin/tsc", *oldest, "example.ts")
        (readme,) = re.findall(r"^```javascript\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
        (home / "readme.js").write_text(readme)
        print(follow(home))
        with Peer(home / "node_modules/logicalrep/src/index.js") as peer:
            print(f"{archive.name}: {dict(compare(peer, damaged(Random(0), 20_000)))} as in Python")


def follow(home: Path) -> str:
    """Run the README's example on a stand-in server up to the second commit; return a line about it."""
    with StandIn(shop(proto_version=4, streaming="parallel")) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_create_logical_replication_slot('audit', 'pgoutput')")
        url = f"postgres://postgres@127.0.0.1:{server.port}/postgres"
        with subprocess.Popen(
            [NODE, "readme.js"], cwd=home, env={"DATABASE_URL": url}, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if sum(one.startswith("committed ") for one in lines) == 2:
                    process.terminate()
                    return f"the example of the README has printed {len(lines)} lines"
    sys.exit(f"the example of the README has ended: {lines}")


def npm(folder: Path, *arguments: str | Path) -> None:
    """Run npm in a folder."""
    quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--no-update-notifier", "--fetch-retries=1")
    run([NODE, NPM, *arguments, *quiet], folder)


def tool(folder: Path, name: str, *arguments: str) -> None:
    """Run a program of a package that npm has installed in a folder."""
    run([NODE, (folder / "node_modules/.bin" / name).resolve(), *arguments], folder)


def run(command: list[str | Path], folder: Path) -> None:
    """Run a program in a folder, with node on its path; end this program if it fails."""
    path = os.pathsep.join([str(NODE.parent), os.environ.get("PATH", os.defpath)])
    environment = os.environ | {"PATH": path, "npm_config_cache": str(folder.parent / "cache")}
    if code := subprocess.run(command, cwd=folder, env=environment, check=False).returncode:
        sys.exit(f"{Path(command[0]).name} {command[1]} ended with exit code {code}")


if __name__ == "__main__":
    main()
