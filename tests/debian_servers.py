"""Install PostgreSQL servers of Debian's newer suites, with all libraries that they need, into one folder.

The machine's own packages stay as they are. The servers run on any Linux on x86-64 whose apt knows a mirror
of Debian. They can be moved, and have all programs, such as pg_upgrade and pg_recvlogical, which the npm
packages lack.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SUITES: Final = {17: "trixie", 19: "experimental"}
"""By major version of PostgreSQL, the suite of Debian that has it; the libraries come from `sid`."""

STAMP: Final = "fetched-from-debian"
"""Name of the file that marks a complete installation."""

LIBRARY: Final = re.compile(r"lib(?!perl|llvm)[a-z0-9+.-]+|zlib1g")
"""Pattern for the names of packages that the servers need at run time, among all their dependencies."""

LOADER: Final = """\
#!/bin/sh
usr=$(dirname "$(readlink -f "$0")")/../../../..
exec "$usr"/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 --argv0 "$0" \\
    --library-path "$usr/lib/x86_64-linux-gnu" "$usr/lib/postgresql/{major}/programs/{name}" "$@"
"""
"""Script that starts a program with the C library of its suite, which the machine may lack."""


class Unavailable(Exception):
    """The servers cannot be installed from Debian; the text says why."""


def is_installed(folder: Path, major: int) -> bool:
    """Return whether `folder` has the server of a major version from Debian."""
    return (folder / str(major) / STAMP).is_file()


def fetch(folder: Path) -> None:
    """Install the servers of `SUITES` into `folder/MAJOR/native`, unless they are installed already.

    Raises:
        Unavailable: There is no apt, no mirror of Debian, or no such package.
    """
    missing = [major for major in SUITES if not is_installed(folder, major)]
    if not missing:
        return
    with tempfile.TemporaryDirectory() as work:
        apt = _Apt(Path(work))
        for major in missing:
            print(f"fetching PostgreSQL {major} from Debian", flush=True)
            _install(apt, folder, major)


def _install(apt: _Apt, folder: Path, major: int) -> None:
    target, partial = folder / str(major), folder / f".{major}.partial"
    for old in (target, partial):
        shutil.rmtree(old, ignore_errors=True)
    root = partial / "native"
    root.mkdir(parents=True)
    for package in apt.download([f"postgresql-{major}", f"postgresql-client-{major}"]):
        _run("dpkg-deb", "-x", package, root)
    installed = root / "usr/lib/postgresql" / str(major)
    (installed / "bin").rename(installed / "programs")
    (installed / "bin").mkdir()
    for program in (installed / "programs").iterdir():
        script = installed / "bin" / program.name
        script.write_text(LOADER.format(major=major, name=program.name))
        script.chmod(0o755)
    (root / "bin").symlink_to((installed / "bin").relative_to(root))
    (partial / STAMP).touch()
    partial.rename(target)


class _Apt:
    """apt with its own package lists, in a temporary folder.

    Raises:
        Unavailable: There is no apt, or no mirror of Debian.
    """

    def __init__(self, work: Path) -> None:
        if shutil.which("apt-get") is None:
            raise Unavailable("this machine has no apt")
        sites = _run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").split()
        mirror = next((site for site in sites if site.rstrip("/").endswith("/debian")), None)
        if mirror is None:
            raise Unavailable("apt knows no mirror of Debian")
        for part in ("lists/partial", "cache/archives/partial", "debs"):
            (work / part).mkdir(parents=True)
        (work / "status").touch()
        suites = sorted({"sid", *SUITES.values()})
        (work / "sources.list").write_text("".join(f"deb {mirror} {suite} main\n" for suite in suites))
        paths = {
            "Etc::sourcelist": "sources.list",
            "State": ".",
            "State::status": "status",
            "State::lists": "lists",
            "Cache": "cache",
        }
        self._debs = work / "debs"
        self._options = ["-q", "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Sandbox::User="]
        self._options += [part for key, name in paths.items() for part in ("-o", f"Dir::{key}={work / name}")]
        _run("apt-get", *self._options, "update")

    def download(self, packages: list[str]) -> Iterable[Path]:
        """Download packages and the libraries that they depend on; return the paths of the files."""
        kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
        arguments = ["depends", "--recurse", *(f"--no-{kind}" for kind in kinds), *packages]
        names = set(_run("apt-cache", *self._options, *arguments).split())
        libraries = sorted(filter(LIBRARY.fullmatch, names))
        for old in self._debs.iterdir():
            old.unlink()
        _run("apt-get", *self._options, "download", *packages, *libraries, cwd=self._debs)
        return sorted(self._debs.glob("*.deb"))


def _run(*command: object, cwd: Path | None = None) -> str:
    """Return the output of a program. Raise `Unavailable` with the last line of its errors if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        raise Unavailable(f"{command[0]}: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout
