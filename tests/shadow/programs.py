"""The programs of a server's installation, run as a user that the server accepts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from tests.server import Server
from tests.shadow.sync import USER


class Programs:
    """An installation of PostgreSQL with its development files.

    Args:
        folder: Folder with the programs, also pg_config.

    Raises:
        SystemExit: The folder has no pg_config, or the installation has no pg_regress.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "pg_config").is_file():
            raise SystemExit(
                f"{folder} has no pg_config: install the server's development files, see CONTRIBUTING.md"
            )
        self.tools = Path(self.config("--pgxs")).parents[1] / "test"
        if not (self.tools / "regress/pg_regress").is_file():
            raise SystemExit(f"{self.tools} has no regress/pg_regress: install it, see CONTRIBUTING.md")

    @cached_property
    def version(self) -> str:
        """The server's version, such as 18.6."""
        found = re.search(r"\d+(\.\d+|\w+)", self.config("--version"))
        assert found is not None
        return found[0]

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])

    def config(self, option: str) -> str:
        """Return what pg_config says."""
        return subprocess.check_output([self.folder / "pg_config", option], text=True).strip()

    def built_with(self, option: str) -> str:
        """Return whether the server was configured with an option, as the tests want it: `yes` or `no`."""
        return "yes" if option in self.config("--configure") else "no"

    def environment(self, home: Path) -> dict[str, str]:
        """Return environment variables for the programs."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))
        }
        return kept | {"PATH": f"{self.folder}:{os.environ['PATH']}", "HOME": str(home)}


class ShadowedServer(Server):
    """A server of an installation, with settings for PostgreSQL's regression tests."""

    def __init__(self, programs: Programs) -> None:
        settings = dict.fromkeys(("max_wal_senders", "max_replication_slots"), "40")
        settings |= {"max_connections": "120", "allow_in_place_tablespaces": "on", "port": "54329"}
        super().__init__(programs.major, **settings)
        self._programs = programs

    def _install(self) -> None:
        self.data, self.bin = self.folder / "data", self._programs.folder
        shutil.chown(self.folder, USER)


def as_user(
    command: Sequence[object],
    environment: Mapping[str, str],
    folder: Path,
    log: IO[bytes],
    *,
    seconds: float,
    given: bytes = b"",
) -> int:
    """Run a program as the user of the servers; return its exit code, or -1 if it takes too long."""
    user = {"user": USER, "extra_groups": []} if os.geteuid() == 0 else {}
    options: Any = user | {"env": dict(environment), "cwd": folder, "stdout": log, "stderr": log}
    with subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, **options) as process:
        try:
            process.communicate(given, seconds)
            return process.returncode
        except subprocess.TimeoutExpired:
            return -1
        finally:
            process.terminate()  # a TAP test then stops its servers
