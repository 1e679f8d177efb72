"""Read the data files of a Delta table with deletion vectors, and write commits, as in the Delta protocol.

delta-rs (1.6) applies deletion vectors when it reads rows, but its actions do not contain the vectors. So the
actions of such a table are read here, and all commits that change rows are written here.

Sections of the protocol: "Actions", "Action Reconciliation", "Checkpoints", "Delta Log Entries".
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets.delta.vectors import Vector
from logicalrep.targets.protocol import DataFile
from logicalrep.targets.small_files import create_file

LOG_FOLDER: Final = "_delta_log"
"""Name of the folder with the log of a Delta table."""

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(\.\d{10}\.(\d{10}))?\.parquet")
"""Pattern for the file names of a checkpoint; the last group is the number of its files if it has several."""


class AddFile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The action `add` of a commit, which adds a data file to a table ("Add File and Remove File")."""

    path: str
    size: int
    modification_time: int
    data_change: bool
    partition_values: dict[str, str | None]
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: Vector | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    clustering_provider: str | None = None

    def data_file(self, schema: pa.Schema) -> DataFile:
        """Return the data file that the action adds, with its statistics.

        Only integer and date columns have least and greatest values in the result.

        Args:
            schema: The columns of the table.
        """
        found = msgspec.json.decode(self.stats or "{}", type=_Statistics)
        integers = {field.name for field in schema if pa.types.is_integer(field.type)}
        dates = {field.name for field in schema if pa.types.is_date(field.type)}

        def typed(values: Mapping[str, Any]) -> dict[str, Any]:
            days = {name: date.fromisoformat(text) for name, text in values.items() if name in dates and text}
            return {name: number for name, number in values.items() if name in integers} | days

        deleted = 0 if self.deletion_vector is None else self.deletion_vector.cardinality
        least, greatest = typed(found.min_values), typed(found.max_values)
        return DataFile(
            self.path, self.size, found.num_records, least, greatest, found.null_count, deleted=deleted
        )


class _Statistics(msgspec.Struct, rename="camel"):
    """Statistics of a data file, as far as logicalrep uses them ("Per-file Statistics")."""

    num_records: int = 0
    min_values: Mapping[str, Any] = {}
    max_values: Mapping[str, Any] = {}
    null_count: Mapping[str, Any] = {}


class _Remove(msgspec.Struct, rename="camel"):
    path: str


class _Action(msgspec.Struct):
    """One action of a commit. Both fields are None if the action neither adds nor removes a data file."""

    add: AddFile | None = None
    remove: _Remove | None = None


def read_files(place: Location, version: int) -> dict[str, AddFile]:
    """Return the data files of a table's version, by path, from the newest checkpoint and later commits.

    Args:
        place: The folder of the table.
        version: Number of the version.

    Raises:
        ReplicaError: The log lacks a commit, or a checkpoint has an unknown structure.
    """
    files, since = _read_checkpoint(place, version)
    decoder = msgspec.json.Decoder(_Action)
    for number in range(since + 1, version + 1):
        content = commit_file(place, number).content()
        if content is None:
            raise ReplicaError(
                f"{place}: the log of the Delta table lacks the commit of version {number}. Put the file of "
                "the commit back, or build the table anew (`logicalrep replicate --reset-table`)"
            )
        actions = [decoder.decode(line) for line in content.splitlines() if line]
        # Removals first: a commit may remove a file and add it with another vector, in any order.
        for action in actions:
            if action.remove is not None:
                files.pop(action.remove.path, None)
        files |= {action.add.path: action.add for action in actions if action.add is not None}
    return files


def _read_checkpoint(place: Location, version: int) -> tuple[dict[str, AddFile], int]:
    """Return the data files, by path, and the version of the newest checkpoint up to `version`.

    If there is no checkpoint, return no files and -1.
    """
    log = place / LOG_FOLDER
    parts: dict[int, list[str]] = {}
    complete = -1
    for name in sorted(log.names()):
        if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) <= version:
            found = parts.setdefault(int(match[1]), [])
            found.append(name)
            if len(found) == int(match[3] or 1):
                complete = int(match[1])
    files: dict[str, AddFile] = {}
    for name in parts.get(complete, ()):
        with log.filesystem.open_input_file(f"{log.path}/{name}") as source:
            rows = pq.read_table(source, columns=["add"])["add"].drop_null()
        for row in rows.to_pylist():
            row |= {key: dict(row[key]) for key in ("partitionValues", "tags") if row.get(key) is not None}
            file = msgspec.convert(row, AddFile)
            files[file.path] = file
    return files, complete


def commit_info(operation: str, parameters: Mapping[str, str], **metadata: str) -> dict[str, Any]:
    """Return the action `commitInfo`, which describes a commit ("Commit Provenance Information").

    Args:
        operation: Name of the operation, as in Spark.
        parameters: Parameters of the operation.
        metadata: Further texts, by key.
    """
    info = {"timestamp": now(), "operation": operation, "operationParameters": parameters}
    return {"commitInfo": info | metadata}


def add_file(file: DataFile, *, changes_rows: bool) -> AddFile:
    """Return the action `add` for a new data file.

    Args:
        file: The data file.
        changes_rows: Whether the commit changes the rows of the table.
    """
    found = _Statistics(file.rows, file.min_values, file.max_values, file.null_counts)
    return AddFile(file.path, file.size, now(), changes_rows, {}, msgspec.json.encode(found).decode())


def remove_file(file: DataFile, added: AddFile | None, *, changes_rows: bool, stays: bool) -> dict[str, Any]:
    """Return the action `remove` for a data file, with the deletion vector that the file has so far.

    Args:
        file: The data file.
        added: The action that has added the file; None if the file has no deletion vector.
        changes_rows: Whether the commit changes the rows of the table.
        stays: Whether the commit adds the file again with another vector. If so, the action has no
            `deletionTimestamp`, so that checkpoints omit the action (section "Checkpoints" of the Delta
            protocol). Otherwise a checkpoint would contain every vector of the last two hours. Exception: if
            the present vector is in a file of its own, the action has a `deletionTimestamp`, because VACUUM
            has to remove that file.
    """
    vector = None if added is None else added.deletion_vector
    action = {
        "path": file.path,
        "dataChange": changes_rows,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size,
    }
    if not stays or (vector is not None and vector.path):
        action["deletionTimestamp"] = now()
    return action if vector is None else action | {"deletionVector": vector}


def mark_rows(file: AddFile, vector: Vector) -> AddFile:
    """Return a copy of `file` with another deletion vector, and with statistics marked as not exact."""
    stats = msgspec.json.decode(file.stats or "{}") | {"tightBounds": False}
    text = msgspec.json.encode(stats).decode()
    return msgspec.structs.replace(file, data_change=True, stats=text, deletion_vector=vector)


def now() -> int:
    """Return the time in milliseconds since 1970-01-01 00:00 UTC, as in all actions."""
    return int(time.time() * 1000)


def write_commit(place: Location, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
    """Write the commit of a version, which must not exist yet, atomically.

    Raises:
        ConflictError: Another commit has made the version.
        ReplicaError: The commit cannot be written.
    """
    create_file(commit_file(place, version), b"\n".join(map(msgspec.json.encode, actions)).decode())


def commit_file(place: Location, version: int) -> Location:
    """Return the location of the commit of a version."""
    return place / LOG_FOLDER / f"{version:020}.json"
