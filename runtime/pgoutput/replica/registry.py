"""The registry of a target maps the OID of a relation to the folder of the relation's Delta table.

A relation's table is created in a folder with the relation's name, and stays there when the relation is
renamed. The table's properties contain the relation's OID. A table is created at most once, so two relations
never share a folder. The registry consists of one small file `_relations/OID` for each relation,
which contains the folder's name. With the registry, the table of one relation is found without opening all
tables. A damaged registry is restored from the properties of the tables.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.recording import GoneTable, Location
from pgoutput.replica.chunks import Chunk
from pgoutput.replica.cleaning import RETENTION
from pgoutput.replica.folders import move_folder, remove_folder
from pgoutput.replica.small_files import create_file, read_file, remove_file, write_file
from pgoutput.wire import to_datetime

OID: Final = "pgoutput.relation_oid"
"""Key of a Delta table property; the value is the OID of the relation."""
NAMESPACE: Final = "pgoutput.relation_namespace"
"""Key of a Delta table property; the value is the current namespace of the relation."""
NAME: Final = "pgoutput.relation_name"
"""Key of a Delta table property; the value is the current name of the relation."""
RECORDING: Final = "pgoutput.recording"
"""Key of a Delta table property; the value is the recording's UUID, or empty without a recording."""
MAY_DIFFER: Final = "pgoutput.may_differ"
"""Key of a Delta table property; the value is a JSON array of the reasons why the table may differ."""
DROPPED: Final = "pgoutput.dropped"
"""Key of a Delta table property; the value is when the relation was dropped, a `GoneTable` as JSON."""

_FOLDER: Final = "_relations"

_FIRST_COMMIT: Final = f"{0:020}.json"
"""Name of the file with the first commit of a Delta table."""

_MAX_NAME_BYTES: Final = 200
"""Maximum size of a table folder's name without the suffix `@OID`, in bytes.

Filesystems allow 255 bytes. The other bytes are left for suffixes that other writers of Delta tables append.
"""

_DIGEST_DIGITS: Final = 16


def open_table(target: Location, chunk: Chunk, schema: pa.Schema, recording: str) -> DeltaTable:
    """Return the Delta table of a relation; create the table if it does not exist.

    Args:
        target: The folder that holds the replica.
        chunk: Changes of the relation, with the relation's OID and name.
        schema: The columns to create a new table with.
        recording: UUID of the recording; empty if the changes do not come from a recording.

    Raises:
        ReplicaError: The target cannot be read, or the table's folder contains something other than a Delta
            table, or a table of another recording.
    """
    place, table = find_table(target, chunk.oid) or _create(target, chunk, schema, recording)
    owner = table.metadata().configuration.get(RECORDING) or ""
    if owner != recording:
        raise ReplicaError(
            f"{place}: the Delta table belongs to recording {owner or 'without a UUID'}, and this is "
            f"recording {recording or 'without a UUID'}. Remove it from this target"
        )
    return table


def find_table(target: Location, oid: int) -> tuple[Location, DeltaTable] | None:
    """Return the path or URI of a relation's Delta table, and the opened table; None if there is no table.

    Raises:
        ReplicaError: The target cannot be read, or the table's folder does not exist any more.
    """
    file = target / _FOLDER / str(oid)
    registered = read_file(file)
    if registered:
        table = _open(target / registered)
        if table is not None and _relation_oid(table) == oid:
            return target / registered, table
    elif str(oid) not in (target / _FOLDER).names():
        return None
    for name in _search_folders(target, oid):  # the registry's file is truncated, or the table was moved
        register_table(target, oid, name)
        return target / name, DeltaTable((target / name).place)
    if registered:
        raise ReplicaError(
            f"{target / registered}: the Delta table of relation {oid} is gone. "
            "Put it back, or begin anew, with an empty target"
        )
    return None


def register_table(target: Location, oid: int, folder: str) -> None:
    """Store the name of the folder with a relation's Delta table in the registry of a target."""
    write_file(target / _FOLDER / str(oid), folder)


def registered_oids(target: Location) -> set[int]:
    """Return the OIDs of the relations in the registry of a target."""
    return {int(name) for name in (target / _FOLDER).names() if name.isdecimal()}


def decode_dropped(table: DeltaTable) -> GoneTable | None:
    """Return when the relation of a Delta table was dropped on the server; None if it was not.

    Raises:
        ValueError: The table property `pgoutput.dropped` is not JSON of a `GoneTable`.
    """
    text = table.metadata().configuration.get(DROPPED)
    return msgspec.json.decode(text, type=GoneTable) if text else None


def archive_table(target: Location, dropped: GoneTable) -> str:
    """Give the folder of a dropped relation's Delta table a name with the OID and the date of the drop.

    After a kill, call the function again. In an object store the table is copied, and readers of the old
    folder find a part of its files until the old folder is removed.

    Returns:
        Name of the folder.

    Raises:
        ReplicaError: The table cannot be read or moved.
    """
    old = folder_name(dropped.namespace, dropped.name)
    name = f"{old}@{dropped.oid}-{to_datetime(dropped.time).date().isoformat()}"
    if (found := find_table(target, dropped.oid)) is not None and found[0].path != (target / name).path:
        move_table(target, dropped.oid, found[0], name)
    left = _open(target / old)
    if left is not None and _relation_oid(left) == dropped.oid:  # a kill has interrupted the removal
        remove_folder(target / old)
    return name


def move_table(target: Location, oid: int, place: Location, name: str) -> None:
    """Move the Delta table of a relation to the folder `name` of the target.

    Raises:
        ReplicaError: The table cannot be moved.
    """
    move_folder(place, target / name)
    register_table(target, oid, name)
    if not place.is_local:
        remove_folder(place)


def remove_table(target: Location, oid: int) -> None:
    """Remove the Delta table of a relation, and the relation from the registry; after a kill, call it again.

    Raises:
        ReplicaError: The table cannot be read or removed.
    """
    entry = target / _FOLDER / str(oid)
    folder = target / (read_file(entry) or "-")
    if (folder / "_delta_log").names() and (found := find_table(target, oid)) is not None:
        remove_folder(found[0])
    remove_file(entry)


def _open(place: Location) -> DeltaTable | None:
    """Return the Delta table at a path or URI, or None if no Delta table is there."""
    try:
        return DeltaTable(place.place)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise ReplicaError(f"{place}: the Delta table cannot be read: {one_line(error)}") from error


def _create(target: Location, chunk: Chunk, schema: pa.Schema, recording: str) -> tuple[Location, DeltaTable]:
    name = folder_name(chunk.namespace, chunk.name)
    properties: dict[str, str | None] = {
        OID: str(chunk.oid),
        NAMESPACE: chunk.namespace,
        NAME: chunk.name,
        RECORDING: recording,
        **RETENTION,
    }
    if (other := _open(target / name)) is not None and (dropped := decode_dropped(other)) is not None:
        archive_table(target, dropped)
    for folder in (name, f"{name}@{chunk.oid}"):
        table = _create_at(target / folder, schema, properties)
        if _relation_oid(table) == chunk.oid:
            register_table(target, chunk.oid, folder)
            return target / folder, table
    raise ReplicaError(f"{target / name}: the Delta table here does not belong to relation {chunk.oid}")


def _create_at(place: Location, schema: pa.Schema, properties: dict[str, str | None]) -> DeltaTable:
    """Return the Delta table at a path or URI; create it if no Delta table is there.

    If two processes create a table at the same time, delta-rs makes the second creation version 1 of the
    first table. So the table is created elsewhere, and its first commit is written only where none is.
    """
    if (existing := _open(place)) is not None:
        return existing
    failure: DeltaError | ReplicaError | None = None
    with TemporaryDirectory(prefix="pgoutput-") as folder:
        try:
            DeltaTable.create(folder, schema, configuration=properties, raise_if_key_not_exists=False)
            commit = Path(folder, "_delta_log", _FIRST_COMMIT).read_text()
            create_file(place / "_delta_log" / _FIRST_COMMIT, commit)
        except (DeltaError, ReplicaError) as error:  # a concurrent task may have created a table
            failure = error
    if (created := _open(place)) is None:
        cause = "no table exists after the attempt" if failure is None else one_line(failure)
        raise ReplicaError(f"{place}: a Delta table cannot be created here: {cause}") from failure
    return created


def _relation_oid(table: DeltaTable) -> int | None:
    """Return the relation's OID from the properties of a Delta table; None if no property contains an OID."""
    text = table.metadata().configuration.get(OID) or ""
    return int(text) if text.isdecimal() else None


def _search_folders(target: Location, oid: int) -> Iterator[str]:
    """Open the tables of a target; yield the names of the folders whose table is that of relation `oid`."""
    for name in sorted(name for name in target.names() if not name.startswith(("_", "."))):
        try:
            table = _open(target / name)
        except ReplicaError:
            continue  # the table of another relation is damaged
        if table is not None and _relation_oid(table) == oid:
            yield name


def folder_name(namespace: str, name: str) -> str:
    """Return the name of the folder for a relation's table; the name has at most 200 bytes.

    A name that would be longer is truncated, and a digest of the whole name is appended.
    """
    whole = f"{_quote(namespace)}.{_quote(name)}"
    encoded = whole.encode()
    if len(encoded) <= _MAX_NAME_BYTES:
        return whole
    digest = hashlib.sha256(encoded).hexdigest()[:_DIGEST_DIGITS]
    return encoded[: _MAX_NAME_BYTES - 1 - _DIGEST_DIGITS].decode(errors="ignore") + f"~{digest}"


def _quote(name: str) -> str:
    """Quote a name for paths and URIs: bytes other than letters, digits, `_`, `-` and space become `~XX`.

    A leading `_` is quoted too: Spark hides folders whose name begins with `_`, and the names of the target's
    own files begin with `_`. The `%` of URLs is not used, because some readers of Delta tables decode `%XX`.
    """
    return re.sub(r"[^\w -]|\A_", lambda match: "".join(f"~{byte:02X}" for byte in match[0].encode()), name)
