"""Which relation lies in which folder of a target.

A relation's table is created in a folder with the relation's name, and stays there when that changes. Its
OID is in the table's properties: Delta lets one create a table only, so no two relations get one folder. A
small file per relation says where it lies, which is to find it fast, and when it is called otherwise.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from pgoutput.errors import CaptureError
from pgoutput.segments.location import Location, Place, first_line, locate

OID: Final = "pgoutput.relation_oid"
"""The property of a Delta table."""

_RELATIONS: Final = "_relations"


def replica_tables(target: Place) -> dict[int, str]:
    """The tables of a target: for each relation's OID the path or URI of its Delta table.

    Raises:
        CaptureError: The target cannot be read.
    """
    folder = locate(target)
    oids = sorted(int(name) for name in (folder / _RELATIONS).names() if name.isdecimal())
    folders = {oid: read_file(folder / _RELATIONS / str(oid)) for oid in oids}
    there = set(folder.names())
    times = Counter(folders.values())
    return {
        oid: (folder / (name if name in there and times[name] == 1 else _search(folder, oid, name))).place
        for oid, name in folders.items()
        if name or _tables_of(folder, oid)
    }


def find_table(target: Location, oid: int, namespace: str, name: str, schema: pa.Schema) -> DeltaTable:
    """The Delta table of a relation; it is created if the relation has none.

    Args:
        target: Where the tables lie.
        oid: OID of the relation.
        namespace: Its namespace, for a new table.
        name: Its name, for a new table.
        schema: The columns, for a new table.

    Raises:
        CaptureError: The target cannot be read, or holds something else in the table's place.
    """
    registered = target / _RELATIONS / str(oid)
    if there := read_file(registered):
        table = _open(target / there)
        if table is not None and _oid_of(table) == oid:
            return table
        found = _search(target, oid, there)
        write_file(registered, found)
        return DeltaTable((target / found).place)
    if str(oid) in (target / _RELATIONS).names():  # it was not written whole
        for found in _tables_of(target, oid):
            write_file(registered, found)
            return DeltaTable((target / found).place)
    usual = f"{_quoted(namespace)}.{_quoted(name)}"
    for folder in (usual, f"{usual}@{oid}"):
        table = _create(target / folder, oid, schema)
        if _oid_of(table) == oid:
            write_file(registered, folder)
            return table
    raise CaptureError(f"{target / usual}: the Delta table that is here is not one of relation {oid}")


def _create(place: Location, oid: int, schema: pa.Schema) -> DeltaTable:
    if (there := _open(place)) is not None:
        return there
    with contextlib.suppress(DeltaError):  # another of that name was faster, or else the next line tells
        DeltaTable.create(place.place, schema, configuration={OID: str(oid)}, raise_if_key_not_exists=False)
    if (created := _open(place)) is None:
        raise CaptureError(f"{place}: a Delta table cannot be created here")
    return created


def _open(place: Location) -> DeltaTable | None:
    """The Delta table at a place; None if there is none."""
    try:
        return DeltaTable(place.place)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise CaptureError(f"{place}: the Delta table cannot be read: {first_line(error)}") from None


def _oid_of(table: DeltaTable) -> int | None:
    """The OID of the relation that a table follows."""
    text = table.metadata().configuration.get(OID) or ""
    return int(text) if text.isdecimal() else None


def _tables_of(target: Location, oid: int) -> list[str]:
    """The folders with a relation's tables. It opens all, which is for when the register is wrong."""
    found = []
    for name in sorted(name for name in target.names() if not name.startswith(("_", "."))):
        table = _open(target / name)
        if table is not None and _oid_of(table) == oid:
            found.append(name)
    return found


def _search(target: Location, oid: int, registered: str) -> str:
    """The folder of a relation whose table does not lie where it was.

    Raises:
        CaptureError: There is none.
    """
    for name in _tables_of(target, oid):
        return name
    raise CaptureError(
        f"{target / registered}: the Delta table of relation {oid} is gone. "
        "Put it back, or begin anew, with an empty target"
    )


def read_file(place: Location) -> str:
    """What a small file says; nothing if it is not there.

    Raises:
        CaptureError: It cannot be read.
    """
    try:
        if place.filesystem.get_file_info(place.path).type == fs.FileType.NotFound:
            return ""
        with place.filesystem.open_input_stream(place.path) as stream:
            return bytes(stream.read()).decode()
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise CaptureError(f"{place}: {error}") from None


def write_file(place: Location, text: str) -> None:
    """Make a small file; who reads it finds all of it, or none.

    Raises:
        CaptureError: It cannot be written.
    """
    try:
        place.filesystem.create_dir(place.path.rpartition("/")[0])
        if isinstance(place.filesystem, fs.LocalFileSystem):  # others show files when they are complete
            part = f"{place.path}.part"
            _write(place.filesystem, part, text)
            place.filesystem.move(part, place.path)
        else:
            _write(place.filesystem, place.path, text)
    except (OSError, pa.ArrowException) as error:
        raise CaptureError(f"{place}: {error}") from None


def _write(filesystem: fs.FileSystem, path: str, text: str) -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(text.encode())


def _quoted(name: str) -> str:
    """A name that is fit for paths and URIs: what is not a letter, digit, `_`, `-` or space is `~` and hex.

    (With the `%` of URLs, some readers of Delta tables look elsewhere.)
    """
    return re.sub(r"[^\w -]", lambda match: "".join(f"~{byte:02X}" for byte in match[0].encode()), name)
