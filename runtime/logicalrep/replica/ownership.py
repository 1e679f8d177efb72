"""Ownership of a target: its kind of output, and the recording that its changes come from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from logicalrep.errors import ReplicaError
from logicalrep.recording import PathOrUri, locate, make_folder
from logicalrep.targets import (
    IcebergCatalog,
    open_format,
    parse_partition,
    read_catalog,
    read_file,
    store_catalog,
    write_file,
)

_OWNER_FILE: Final = "_owner.json"


class Owner(msgspec.Struct, frozen=True):
    """What a target contains and which recording it follows, stored in its file `_owner.json`."""

    id: str
    """UUID of the target, under which it is registered as a reader of the recording."""
    output: str
    """What is written to the target: "tables" or "history" (tables with all versions of rows)."""
    recording: str
    """UUID of the recording."""


def use_iceberg(target: PathOrUri, catalog: str = "local", partition: Iterable[str] = ()) -> None:
    """Make the tables of a new target Iceberg tables; call it before the first changes are applied.

    Later calls with the same catalogue change at most the partition fields of tables to be created. The
    functions for replicas, `logicalrep.spark.replicate` and the commands then read and write Iceberg tables
    in this target. The namespace of a table is that of its relation.

    Args:
        target: The folder with the files of the tables, as a path or URI. It cannot be moved, because
            Iceberg's metadata have absolute paths.
        catalog: "local" for an SQLite catalogue in the folder; otherwise the name of a catalogue in the
            configuration of pyiceberg (`.pyiceberg.yaml` or environment). A dot and a prefix for namespaces
            may follow: with `prod.shop`, tables of the schema `public` are in the namespace `shop_public`.
        partition: Partition fields of tables that are created from now on: columns, or transforms such as
            `day(created_at)` and `bucket(16, id)`. A table gets those fields whose column it has. If empty,
            the fields of an earlier call stay.

    Raises:
        ReplicaError: A partition field is not valid, the target has tables already that are not in this
            catalogue, the catalogue cannot be opened, or the target is in an object store and the catalogue
            is "local".
        MissingExtraError: The package pyiceberg is not installed.
    """
    folder = locate(target)
    name, _, namespace = catalog.partition(".")
    known = read_catalog(folder)
    fields = parse_partition(partition) or (() if known is None else known.partition)
    wanted = IcebergCatalog("" if name == "local" else name, namespace, fields)
    if known == wanted:
        return
    is_same = known is not None and (known.name, known.namespace) == (wanted.name, wanted.namespace)
    if not is_same and (known is not None or read_owner(target) is not None):
        tables = "Delta tables" if known is None else "tables of another catalogue"
        raise ReplicaError(
            f"{folder}: the target contains {tables}. "
            f"Give a new target for Iceberg tables in the catalogue {catalog}"
        )
    if not is_same:
        check_owner(target, "tables", "")  # also refuses a folder with other files
        if folder.is_local:
            make_folder(Path(folder.path))
    open_format(wanted).names(folder)  # fails if the catalogue cannot be opened
    store_catalog(folder, wanted)


def claim_target(target: PathOrUri, output: str, recording: str) -> Owner:
    """Return the owner of a target; store one if the target has none.

    Args:
        target: The folder, as a path or URI.
        output: What is written to the target: "tables" or "history".
        recording: UUID of the recording.

    Raises:
        ReplicaError: The folder contains something other than a target, or the target has another kind of
            output or belongs to another recording.
    """
    owner = check_owner(target, output, recording)
    if owner is None:
        owner, folder = Owner(str(uuid4()), output, recording), locate(target)
        if folder.is_local:
            make_folder(Path(folder.path))
        write_file(folder / _OWNER_FILE, msgspec.json.encode(owner).decode())
    return owner


def check_owner(target: PathOrUri, output: str, recording: str) -> Owner | None:
    """Check that a target has this output and recording; return its owner, or None if the target is empty.

    Args:
        target: The folder, as a path or URI.
        output: What a query is going to write to the target: "tables" or "history".
        recording: UUID of the recording that the changes come from; empty if it is not known yet.

    Raises:
        ReplicaError: The folder contains something other than a target, or the target has another kind of
            output or belongs to another recording.
    """
    folder = locate(target)
    owner = read_owner(target)
    if owner is None:
        names = folder.names()
        others = sorted(name for name in names if not name.startswith(("_", ".")))
        if others and "_relations" in names:
            raise ReplicaError(
                f"{folder / _OWNER_FILE}: the file is missing, but the folder has tables of a replica. "
                "Put the file back, or replicate into a new target"
            )
        if others:
            raise ReplicaError(
                f"{folder}: expected a target or an empty folder, found the file or folder {others[0]}"
            )
        return None
    if owner.output != output:
        raise ReplicaError(f"{folder}: the target contains {owner.output}. Write {output} to another target")
    if recording and owner.recording != recording:
        raise ReplicaError(
            f"{folder}: the target belongs to recording {owner.recording}, and this is "
            f"recording {recording}. Give the target's own recording, or begin anew with a new target"
        )
    return owner


def check_unchanged(target: PathOrUri, owner: Owner) -> None:
    """Check that a target still has the owner that it had when a run began.

    Raises:
        ReplicaError: The target was removed or replaced, or its file `_owner.json` cannot be read.
    """
    found = read_owner(target)
    if found != owner:
        state = "is missing" if found is None else "has another ID"
        raise ReplicaError(
            f"{locate(target) / _OWNER_FILE}: the file {state}, so the target was removed or replaced while "
            "this run wrote to it. Put the target back, or run `logicalrep replicate` again to begin anew "
            "with an empty target"
        )


def read_owner(target: PathOrUri) -> Owner | None:
    """Return the owner that is stored in a target, or None if no owner is stored.

    Raises:
        ReplicaError: The target's file `_owner.json` cannot be read.
    """
    file = locate(target) / _OWNER_FILE
    text = read_file(file)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Owner)
    except msgspec.DecodeError as error:
        raise ReplicaError(
            f"{file}: {error}. The file is damaged, or was written by an earlier version of logicalrep: "
            "replicate anew into an empty target"
        ) from error
