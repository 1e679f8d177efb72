"""Which relation lies in which folder of a target.

A relation's table is created in a folder with the relation's name, and stays there when that changes. Its
OID is in the table's properties: Delta lets one create a table only, so no two relations get one folder. A
small file per relation says where it lies, which is to find it fast, and when it is called otherwise.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, one_line
from pgoutput.replica.chunks import Chunk
from pgoutput.replica.storage import read_file, write_file

OID: Final = "pgoutput.relation_oid"
NAMESPACE: Final = "pgoutput.relation_namespace"
NAME: Final = "pgoutput.relation_name"
RECORDING: Final = "pgoutput.recording"
MAY_DIFFER: Final = "pgoutput.may_differ"
"""Properties of a Delta table."""

RELATIONS: Final = "_relations"

_MAX_BYTES: Final = 200
"""Bytes of a folder's name without `@OID`. Filesystems allow 255; other writers append suffixes."""

_DIGEST_DIGITS: Final = 16


def find_table(target: Location, chunk: Chunk, schema: pa.Schema, recording: str) -> DeltaTable:
    """Return the Delta table of a relation; create it if the relation has none.

    Args:
        target: Where the tables lie.
        chunk: Changes of the relation.
        schema: The columns, for a new table.
        recording: UUID of the recording; empty where the changes come from none.

    Raises:
        ReplicaError: The target cannot be read, holds something else in the table's place, or has a table
            of another recording there.
    """
    place, table = find_registered(target, chunk.oid) or _create(target, chunk, schema, recording)
    there = table.metadata().configuration.get(RECORDING) or ""
    if there != recording:
        raise ReplicaError(
            f"{place}: the Delta table belongs to recording {there or 'without a UUID'}, and this is "
            f"recording {recording or 'without a UUID'}. Remove it from this target"
        )
    return table


def find_registered(target: Location, oid: int) -> tuple[Location, DeltaTable] | None:
    """Return where the Delta table of a relation lies, and the table; None if it is not registered.

    Raises:
        ReplicaError: The target cannot be read, or the table is gone.
    """
    file = target / RELATIONS / str(oid)
    registered = read_file(file)
    if registered:
        table = _open(target / registered)
        if table is not None and _oid_of(table) == oid:
            return target / registered, table
    elif str(oid) not in (target / RELATIONS).names():
        return None
    for name in _tables_of(target, oid):  # the file was not written whole, or the table was moved
        write_file(file, name)
        return target / name, DeltaTable((target / name).place)
    if registered:
        raise ReplicaError(
            f"{target / registered}: the Delta table of relation {oid} is gone. "
            "Put it back, or begin anew, with an empty target"
        )
    return None


def _open(place: Location) -> DeltaTable | None:
    """Return the Delta table at a place; None if there is none."""
    try:
        return DeltaTable(place.place)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise ReplicaError(f"{place}: the Delta table cannot be read: {one_line(error)}") from error


def _create(target: Location, chunk: Chunk, schema: pa.Schema, recording: str) -> tuple[Location, DeltaTable]:
    usual = folder_name(chunk.namespace, chunk.name)
    properties: dict[str, str | None] = {
        OID: str(chunk.oid),
        NAMESPACE: chunk.namespace,
        NAME: chunk.name,
        RECORDING: recording,
    }
    for folder in (usual, f"{usual}@{chunk.oid}"):
        table = _create_at(target / folder, schema, properties)
        if _oid_of(table) == chunk.oid:
            write_file(target / RELATIONS / str(chunk.oid), folder)
            return target / folder, table
    raise ReplicaError(f"{target / usual}: the Delta table that is here is not one of relation {chunk.oid}")


def _create_at(place: Location, schema: pa.Schema, properties: dict[str, str | None]) -> DeltaTable:
    if (there := _open(place)) is not None:
        return there
    failure: DeltaError | None = None
    try:
        DeltaTable.create(place.place, schema, configuration=properties, raise_if_key_not_exists=False)
    except DeltaError as error:  # another relation of that name may have been faster
        failure = error
    if (created := _open(place)) is None:
        cause = "it is not there" if failure is None else one_line(failure)
        raise ReplicaError(f"{place}: a Delta table cannot be created here: {cause}") from failure
    return created


def _oid_of(table: DeltaTable) -> int | None:
    """The OID of the relation that a table follows."""
    text = table.metadata().configuration.get(OID) or ""
    return int(text) if text.isdecimal() else None


def _tables_of(target: Location, oid: int) -> list[str]:
    """The folders with a relation's tables. It opens all, which is for when the register is wrong."""
    found = []
    for name in sorted(name for name in target.names() if not name.startswith(("_", "."))):
        try:
            table = _open(target / name)
        except ReplicaError:
            continue  # the table of another relation is damaged
        if table is not None and _oid_of(table) == oid:
            found.append(name)
    return found


def folder_name(namespace: str, name: str) -> str:
    """Return the name of the folder for a relation's table, of at most 200 bytes.

    A name that would be longer is cut, and ends with a digest of the whole.
    """
    whole = f"{_quoted(namespace)}.{_quoted(name)}"
    encoded = whole.encode()
    if len(encoded) <= _MAX_BYTES:
        return whole
    digest = hashlib.sha256(encoded).hexdigest()[:_DIGEST_DIGITS]
    return encoded[: _MAX_BYTES - 1 - _DIGEST_DIGITS].decode(errors="ignore") + f"~{digest}"


def _quoted(name: str) -> str:
    """A name that is fit for paths and URIs: what is not a letter, digit, `_`, `-` or space is `~` and hex.

    So is a `_` in front: Spark hides such folders, and the target's own files begin with it. (With the `%` of
    URLs, some readers of Delta tables look elsewhere.)
    """
    return re.sub(r"[^\w -]|\A_", lambda match: "".join(f"~{byte:02X}" for byte in match[0].encode()), name)
