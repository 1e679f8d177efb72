"""The registry of a target maps the OID of a relation to the name of the relation's table.

A relation's table is created in a folder with the relation's name, and stays there when the relation is
renamed. The table's properties contain the relation's OID. If a folder has the table of another relation, the
folder `NAME@OID` is used instead. The registry consists of one small file `_relations/OID` for each relation,
which contains the folder's name. With the registry, the table of one relation is found without opening all
tables. A damaged or missing registry is restored from the properties of the tables.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from logicalrep.errors import ReplicaError
from logicalrep.recording import GoneTable, Location, locate
from logicalrep.targets.delta import DeltaFormat
from logicalrep.targets.partitions import PartitionField
from logicalrep.targets.protocol import KEY, ConflictError, Table, TableFormat
from logicalrep.targets.small_files import read_file, remove_file, write_file
from logicalrep.wire import format_time

T = TypeVar("T")

_ATTEMPTS: Final = 10

_FORMAT_FILE: Final = "_iceberg.json"

OID: Final = "logicalrep.relation_oid"
"""Key of a Delta table property; the value is the OID of the relation."""
NAMESPACE: Final = "logicalrep.relation_namespace"
"""Key of a Delta table property; the value is the current namespace of the relation."""
NAME: Final = "logicalrep.relation_name"
"""Key of a Delta table property; the value is the current name of the relation."""
SINCE: Final = "logicalrep.relation_name_since"
"""Key of a Delta table property; the value is the position in the recording since which the relation has its
name."""
RECORDING: Final = "logicalrep.recording"
"""Key of a Delta table property; the value is the recording's UUID, or empty without a recording."""
MAY_DIFFER: Final = "logicalrep.may_differ"
"""Key of a Delta table property; the value is a JSON array of the reasons why the table may differ."""
DROPPED: Final = "logicalrep.dropped"
"""Key of a Delta table property; the value is a `GoneTable` as JSON: when the relation was dropped."""

THREADS: Final = 16
"""Number of tables that are opened concurrently: a remote filesystem can be slow to answer."""

_FOLDER: Final = "_relations"

_MAX_NAME_BYTES: Final = 200
"""Maximum size of a table folder's name without the suffix `@OID`, in bytes.

Filesystems allow 255 bytes. The other bytes are left for suffixes that other writers of Delta tables append.
"""

_DIGEST_DIGITS: Final = 16


class IcebergCatalog(msgspec.Struct, frozen=True, omit_defaults=True):
    """The Iceberg catalogue with the tables of a target, and how new tables are partitioned."""

    name: str = ""
    """Name of the catalogue in the configuration of pyiceberg; empty for one in the target's folder."""
    namespace: str = ""
    """Prefix of the namespaces of the tables; a dot separates levels."""
    partition: tuple[PartitionField, ...] = ()
    """Partition fields of new tables. A table gets those fields whose column it has."""


def format_of(target: Location) -> TableFormat:
    """Return the format of the tables of a target.

    Raises:
        ReplicaError: The target cannot be read.
        MissingExtraError: The tables are Iceberg tables, and the package pyiceberg is not installed.
    """
    catalog = _known_catalog(target.place)
    return DeltaFormat() if catalog is None else open_format(catalog)


@cache
def _known_catalog(target: str) -> IcebergCatalog | None:
    return read_catalog(locate(target))


def rename_pause(target: Location) -> float | None:
    """Return `TableFormat.rename_pause` of a target's format."""
    return format_of(target).rename_pause(target)


def table_names(target: Location) -> list[str]:
    """Return the names of the tables in a target; other folders may be among them.

    Raises:
        ReplicaError: The target cannot be read.
    """
    return format_of(target).names(target)


def column_types(target: Location) -> Mapping[int, pa.DataType]:
    """Return a target's Arrow types by type OID, where they differ from `logicalrep.values.arrow_type`.

    Raises:
        ReplicaError: The target cannot be read.
    """
    return format_of(target).types


def open_format(catalog: IcebergCatalog) -> TableFormat:
    """Return the format of Iceberg tables in a catalogue.

    Raises:
        MissingExtraError: The package pyiceberg is not installed.
    """
    from logicalrep.targets.iceberg import IcebergFormat  # only here: it needs an extra

    return IcebergFormat(catalog.name, catalog.namespace, catalog.partition)


def read_catalog(target: Location) -> IcebergCatalog | None:
    """Return the Iceberg catalogue with the tables of a target; None if they are Delta tables.

    Raises:
        ReplicaError: The file that contains the catalogue's name cannot be read.
    """
    text = read_file(target / _FORMAT_FILE)
    try:
        return msgspec.json.decode(text, type=IcebergCatalog) if text else None
    except msgspec.DecodeError as error:
        raise ReplicaError(
            f"{target / _FORMAT_FILE}: the file is damaged ({error}). Restore it from a copy"
        ) from error


def copy_format(target: Location, to: Location) -> None:
    """Give the empty local target `to` the table format of `target`. Iceberg gets a new catalogue in `to`.

    Raises:
        ReplicaError: The targets cannot be read or written.
    """
    if _known_catalog(target.place) is not None and _known_catalog(to.place) is None:
        store_catalog(to, IcebergCatalog())


def store_catalog(target: Location, catalog: IcebergCatalog) -> None:
    """Store in a file of a target which Iceberg catalogue has its tables.

    Raises:
        ReplicaError: The target cannot be written.
    """
    write_file(target / _FORMAT_FILE, msgspec.json.encode(catalog).decode())
    _known_catalog.cache_clear()


def check_recording(table: Table, recording: str) -> None:
    """Check that a table has the changes of a recording.

    Args:
        table: The table.
        recording: UUID of the recording.

    Raises:
        ReplicaError: The table belongs to another recording.
    """
    owner = table.properties.get(RECORDING, "")
    if owner != recording:
        raise ReplicaError(
            f"{table.place}: the table belongs to recording {owner or '(without a UUID)'}, but this is "
            f"recording {recording}. Remove the table from this target"
        )


def find_table(target: Location, oid: int) -> Table | None:
    """Return a relation's Delta table; None if there is none.

    Raises:
        ReplicaError: The target cannot be read, or the table's folder does not exist any more.
    """
    file = target / _FOLDER / str(oid)
    registered = read_file(file)
    if registered:
        table = format_of(target).open(target / registered)
        if table is not None and _relation_oid(table) == oid:
            return table
    elif str(oid) not in (target / _FOLDER).names():
        return None
    for name, table in _open_tables(target, format_of(target).names(target)):
        if _relation_oid(table) == oid:  # the registry is damaged, or the table moved
            register_table(target, oid, name)
            return table
    if registered:
        raise ReplicaError(
            f"{target / registered}: the table of the relation with OID {oid} is missing. "
            "Put the table back, or build it anew (`logicalrep replicate --reset-table`)"
        )
    return None


def change_table(target: Location, oid: int, change: Callable[[Table], T]) -> T | None:
    """Call a function that commits to a relation's table; call it again if another commit comes first.

    Returns:
        The result of the function; None if the relation has no table.

    Raises:
        ReplicaError: The table cannot be read or changed.
        ConflictError: Several attempts failed because of concurrent commits.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        table = find_table(target, oid)
        try:
            return None if table is None else change(table)
        except ConflictError:
            if not attempts_left:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises an error")


def create_table(
    target: Location,
    oid: int,
    namespace: str,
    name: str,
    schema: pa.Schema,
    recording: str,
    key: str,
    since: int = -1,
) -> Table:
    """Create the table of a relation that has none.

    Args:
        target: The folder that holds the replica.
        oid: OID of the relation.
        namespace: Namespace of the relation.
        name: Name of the relation.
        schema: The columns of the table.
        recording: UUID of the recording.
        key: Value of the table property `KEY`; empty for a table with history.
        since: Position in the recording from which on the relation has the name; -1 if unknown.

    Raises:
        ReplicaError: The target cannot be written, or the table's folder contains something other than a
            Delta table.
    """
    properties = {
        OID: str(oid),
        NAMESPACE: namespace,
        NAME: name,
        SINCE: str(since),
        RECORDING: recording,
        **({KEY: key} if key else {}),
    }
    folder, tables = folder_name(namespace, name), format_of(target)
    if (other := tables.open(target / folder)) is not None and (dropped := decode_dropped(other)) is not None:
        archive_table(target, dropped)
        time.sleep(tables.rename_pause(target) or 0)
    for one in (folder, f"{folder}@{oid}"):
        place = target / one
        table = tables.open(place) or tables.create(place, schema, properties)
        if _relation_oid(table) == oid:
            register_table(target, oid, one)
            return table
    raise ReplicaError(
        f"{target / folder}: expected the table of the relation with OID {oid}, found the table of another "
        "relation. Move that table to another folder"
    )


def register_table(target: Location, oid: int, folder: str) -> None:
    """Store the name of the folder with a relation's Delta table in the registry of a target."""
    write_file(target / _FOLDER / str(oid), folder)


def registered_oids(target: Location) -> set[int]:
    """Return the OIDs of the relations in the registry of a target."""
    return {int(name) for name in (target / _FOLDER).names() if name.isdecimal()}


def unregistered_tables(target: Location, recording: str) -> dict[int, str]:
    """Return the folders of a recording's tables that have no file in the registry, by relation OID.

    Args:
        target: The folder that holds the replica.
        recording: UUID of the recording.

    Raises:
        ReplicaError: The target cannot be read.
    """
    oids, registered = registered_oids(target), set[str]()

    def read(oid: int) -> None:
        with suppress(ReplicaError):  # `find_table` raises it
            registered.add(read_file(target / _FOLDER / str(oid)))

    with ThreadPoolExecutor(THREADS) as pool:
        [*pool.map(read, oids)]
    found: dict[int, str] = {}
    for folder, table in _open_tables(target, {*format_of(target).names(target)} - registered):
        oid, properties = _relation_oid(table), table.properties
        if oid is None or oid in oids or properties.get(RECORDING) != recording:
            continue
        own = folder_name(properties.get(NAMESPACE, ""), properties.get(NAME, ""))
        if oid not in found or folder == own:  # else it is a copy of the table
            found[oid] = folder
    return found


def missing_entry(target: Location, oid: int) -> ReplicaError:
    """Return an error for a table that has no file in the registry."""
    return ReplicaError(
        f"{target / _FOLDER / str(oid)}: the file is missing, but the target has the table of this relation. "
        "To write the file again, run `logicalrep replicate`"
    )


def restore_registry(target: Location, recording: str) -> None:
    """Write the missing files of the registry, from the properties of the tables.

    The arguments are those of `unregistered_tables`.

    Raises:
        ReplicaError: The target cannot be read or written.
    """
    for oid, folder in unregistered_tables(target, recording).items():
        register_table(target, oid, folder)


def decode_dropped(table: Table) -> GoneTable | None:
    """Return the `GoneTable` that a Delta table stores once its relation was dropped; None before.

    Raises:
        ValueError: The table property `logicalrep.dropped` is not JSON of a `GoneTable`.
    """
    text = table.properties.get(DROPPED)
    return msgspec.json.decode(text, type=GoneTable) if text else None


def archive_name(dropped: GoneTable) -> str:
    """Return the name of the folder for the table of a dropped relation, with the date of the drop."""
    date = format_time(dropped.time).split()[0]
    return f"{folder_name(dropped.namespace, dropped.name)}@{dropped.oid}-{date}"


def archive_table(target: Location, dropped: GoneTable) -> str:
    """Rename the folder of a dropped relation's Delta table: append the OID and the date of the drop.

    If the process is killed during the call, another call completes it. In an object store, the table is
    copied, and then the old folder is removed. A reader of the old folder may find some files removed.

    Returns:
        New name of the folder.

    Raises:
        ReplicaError: The table cannot be read or moved.
    """
    old, name = folder_name(dropped.namespace, dropped.name), archive_name(dropped)
    found = find_table(target, dropped.oid)
    if found is not None and found.place.path != (target / name).path:
        move_table(target, dropped.oid, found.place, name)
    left = format_of(target).open(target / old)
    if left is not None and _relation_oid(left) == dropped.oid:  # a kill has interrupted the removal
        format_of(target).remove(target / old)
    return name


def move_table(target: Location, oid: int, place: Location, name: str) -> None:
    """Move the Delta table of a relation from `place` to the folder `name` of the target.

    The registry then has the new folder.

    Raises:
        ReplicaError: The table cannot be moved.
    """
    format_of(target).move(place, target / name)
    register_table(target, oid, name)
    if not place.is_local:
        format_of(target).remove(place)


def remove_table(target: Location, oid: int) -> None:
    """Remove the Delta table of a relation, and the relation from the registry.

    If the process is killed during the removal, another call completes it.

    Raises:
        ReplicaError: The table cannot be read or removed.
    """
    entry = target / _FOLDER / str(oid)
    if folder := read_file(entry):
        try:
            table = format_of(target).open(target / folder)
            is_own = table is not None and _relation_oid(table) == oid
        except ReplicaError:  # the files of the table are damaged
            is_own = True
        if is_own:
            format_of(target).remove(target / folder)
    remove_file(entry)


def open_version(place: str, version: int) -> Table:
    """Return a version of the Delta table at a path or URI.

    Raises:
        ReplicaError: The version cannot be read.
    """
    location = locate(place)
    table = format_of(location.parent).open(location, version)
    if table is None:
        raise ReplicaError(f"{location}: the table is missing. Put its folder back")
    return table


def _relation_oid(table: Table) -> int | None:
    """Return the relation's OID from the properties of a Delta table; None if no property contains an OID."""
    text = table.properties.get(OID, "")
    return int(text) if text.isdecimal() else None


def _open_tables(target: Location, folders: Iterable[str]) -> Iterator[tuple[str, Table]]:
    """Open the tables in folders of a target; yield folders and tables, without damaged tables."""
    for folder in sorted(folders):
        try:
            table = format_of(target).open(target / folder)
        except ReplicaError:
            continue  # the properties of a damaged table are unknown
        if table is not None:
            yield folder, table


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
