"""The command `pgoutput doctor`: what stands in the way of a recording, what it costs, and what helps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from shutil import disk_usage
from tempfile import TemporaryFile
from typing import Final, get_args

import msgspec
import typer

from pgoutput._extras import MissingExtraError, install_line, require
from pgoutput._text import counted, one_line
from pgoutput.cli.findings import Finding, Level
from pgoutput.cli.printing import printable, refused_values, version_line
from pgoutput.errors import PgoutputError
from pgoutput.recording import Location, locate

FREE_BYTES: Final = 1 << 30
"""Free space of a disk below which an error is reported, in bytes."""


_PACKAGES: Final = {
    "psycopg": ("recorder", "no server can be recorded from here"),
    "deltalake": ("replica", "no Delta tables can be written here"),
    "pyiceberg": ("iceberg", "no Iceberg tables can be written here"),
    "obstore": ("store", "no recording can be written to an object store"),
    "pyspark": ("spark", "no recording can be read in Spark"),
}
"""For each package that a part of pgoutput needs: its extra, and what is not possible without it."""


class Report(msgspec.Struct, frozen=True):
    """Output of `pgoutput doctor`."""

    pgoutput: str
    """Versions of pgoutput and Python."""
    server: str
    """Version of the server; empty without a connection."""
    checks: int
    """Number of checks that were made."""
    findings: tuple[Finding, ...]


def examine(dsn: str, slot: str, publications: Sequence[str], places: Sequence[str], *, json: bool) -> None:
    """Print what stands in the way of a recording; exit with 1 if there is an error.

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
        from pgoutput.cli.server_checks import examine_server

        with refused_values():
            server, made, found = examine_server(dsn, slot, publications)
        checks += made
        findings += found
    except (PgoutputError, MissingExtraError) as error:
        findings.append(
            Finding("error", "connection", one_line(str(error)), "the server cannot be checked", "")
        )
    findings.sort(key=lambda one: get_args(Level).index(one.level))
    report = Report(f"{version_line()}, Python {python_version()}", server, checks, tuple(findings))
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    else:
        for line in _lines(report):
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
        except (PgoutputError, OSError, ImportError) as error:
            yield Finding("error", "place", one_line(str(error)), f"nothing can be written to {place}", "")
            continue
        if free < FREE_BYTES:
            text = f"{place}: {free:,} bytes are free on its disk"
            yield Finding("error", "disk", text, "the recorder ends when the disk is full", "make room")


def _free_bytes(place: Location) -> int:
    """Return the free space of a local disk, in bytes; `sys.maxsize` for an object store.

    Raises:
        OSError: The place cannot be read, or a local folder cannot be written.
        RecordingError: The store does not answer.
    """
    if not place.is_local:
        place.names()
        return sys.maxsize
    folder = next(one for one in (Path(place.path), *Path(place.path).absolute().parents) if one.exists())
    with TemporaryFile(dir=folder):
        return disk_usage(folder).free


def _lines(report: Report) -> Iterator[str]:
    """Yield the lines to print."""
    yield report.pgoutput
    if report.server:
        yield report.server
    for one in report.findings:
        yield f"{one.level:8} {one.found}"
        if one.cost:
            yield f"{'':8} {one.cost}"
        if one.remedy:
            yield f"{'':8} > {one.remedy}"
    counts = {level: sum(one.level == level for one in report.findings) for level in ("error", "warning")}
    errors, warnings = counted(counts["error"], "error"), counted(counts["warning"], "warning")
    yield f"{counted(report.checks, 'check')}: {errors}, {warnings}"
