"""The command `logicalrep doctor`: prints problems of a server and this machine, with costs and remedies."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from shutil import disk_usage
from tempfile import TemporaryFile
from typing import Final, get_args
from uuid import uuid4

import typer

from logicalrep._extras import MissingExtraError, install_line, require
from logicalrep._text import REMEDY, one_line
from logicalrep.cli.common.printing import print_json, printable, refused_values, version_line
from logicalrep.cli.operate.findings import Finding, Level, Report
from logicalrep.errors import LogicalrepError
from logicalrep.recording import Location, ObjectStore, locate

FREE_BYTES: Final = 1 << 30
"""Free space of a disk below which an error is reported, in bytes."""

_PACKAGES: Final = {
    "psycopg": ("recorder", "no server can be recorded from here"),
    "deltalake": ("replica", "no Delta tables can be written here"),
    "pyiceberg": ("iceberg", "no Iceberg tables can be written here"),
    "obstore": ("store", "no recording can be written to an object store"),
    "pyspark": ("spark", "no recording can be read in Spark"),
}
"""For each package that a part of logicalrep needs: its extra, and what is not possible without it."""


def examine(dsn: str, slot: str, publications: Sequence[str], places: Sequence[str], *, json: bool) -> None:
    """Print the problems of a server and of this machine; exit with code 1 if one is an error.

    Args:
        dsn: Connection string of libpq.
        slot: Name of the slot, which need not exist; empty to skip the checks of the slot.
        publications: Names of the publications; empty for all publications of the database.
        places: Paths or URIs of recordings and replicas.
        json: Whether to print a JSON object.
    """
    findings = [*_examine_machine(places)]
    server, checks = "", len(_PACKAGES) + len(places)
    try:
        require("recorder", "psycopg")
        from logicalrep.cli.operate.server_checks import examine_server

        with refused_values():
            server, made, found = examine_server(dsn, slot, publications)
        checks += made
        findings += found
    except (LogicalrepError, MissingExtraError) as error:
        text, _, remedy = one_line(str(error)).partition(REMEDY)
        findings.append(Finding("error", "connection", text, "the server cannot be checked", remedy))
    findings.sort(key=lambda one: get_args(Level).index(one.level))
    report = Report(f"{version_line()}, Python {python_version()}", server, checks, tuple(findings))
    if json:
        print_json(report)
    else:
        for line in report.lines():
            print(printable(line))
    if any(one.level == "error" for one in findings):
        raise typer.Exit(1)


def _examine_machine(places: Sequence[str]) -> Iterator[Finding]:
    """Yield findings on missing packages, and on places that cannot be written or have little free space."""
    for package, (extra, use) in _PACKAGES.items():
        if find_spec(package) is None:
            yield Finding("advice", "packages", f"{package} is missing", use, install_line(extra))
    for place in places:
        try:
            free = _free_bytes(locate(place))
        except (LogicalrepError, OSError, ImportError) as error:
            yield Finding("error", "place", one_line(str(error)), f"nothing can be written to {place}", "")
            continue
        if free < FREE_BYTES:
            text = f"{place}: {free:,} bytes are free on its disk"
            yield Finding("error", "disk", text, "the recorder ends when the disk is full", "free disk space")


def _free_bytes(place: Location) -> int:
    """Write and delete a file; return the free bytes of the local disk, `sys.maxsize` for an object store.

    Raises:
        OSError: The place cannot be read or written.
        RecordingError: The object store does not answer.
    """
    if not place.is_local:
        place.names()
        store, name = ObjectStore(place.place), f"_doctor-{uuid4()}"
        store.create(name, b"")
        store.delete(name)
        return sys.maxsize
    folder = next(one for one in (Path(place.path), *Path(place.path).absolute().parents) if one.exists())
    with TemporaryFile(dir=folder):
        return disk_usage(folder).free
