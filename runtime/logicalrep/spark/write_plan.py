"""Plan how a DataFrame is written as a recording: the table that the rows belong to, and the segments."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import pyarrow as pa

from logicalrep.errors import EncodeError, RecordingError
from logicalrep.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity
from logicalrep.recording import Metadata, Recording, SessionStart, Source, locate
from logicalrep.values import default_type
from logicalrep.versions import CODECS, LATEST_RELEASED
from logicalrep.views import schema_versions
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS

_FIRST_OID: Final = 16_384
"""Smallest OID of a user table (FirstNormalObjectId)."""

_OPTIONS: Final = frozenset(("path", "table", "key", "operation", "proto_version"))

STRIDE: Final = 1 << 40
"""Number of positions, and of LSNs, reserved for each segment, because segments are written concurrently."""

_SOURCE: Final = Source(
    recording="",
    system_identifier="0",
    server_version="",
    database="spark",
    slot="spark",
    publications=(),
    proto_version=min(CODECS),
)
"""Source in the metadata of segments that Spark writes. No server has the system identifier 0."""


class WrittenTable(msgspec.Struct, frozen=True):
    """The table to which the rows of a DataFrame are written, and what the DataFrame's columns contain."""

    relation: Relation
    indices: tuple[int, ...]
    """For each column of the table, the index of the DataFrame's column with the values."""
    key: tuple[int, ...]
    """Indices of the primary key's columns among the table's columns."""
    operation: int | None
    """Index of the DataFrame's column that contains the operation; None if all rows are inserts."""
    proto_version: int


class SegmentPlan(msgspec.Struct, frozen=True):
    """The segments to write: one for each Spark partition. Each segment counts as a session of its own."""

    folder: Path
    source: Source
    start: SessionStart
    """Session, number, first position and start LSN of the first segment."""
    time: int
    """Commit time of all written transactions, in microseconds since 2000-01-01 00:00 UTC."""

    def start_of(self, partition: int) -> SessionStart:
        """Return session, number, first position and start LSN of the segment of a Spark partition."""
        first, skipped = self.start, partition * STRIDE
        return SessionStart(
            session=first.session + partition,
            number=first.number + partition,
            position=first.position + skipped,
            lsn=first.lsn + skipped,
        )


def describe_table(options: Mapping[str, str], schema: pa.Schema) -> WrittenTable:
    """Return the table to which a DataFrame's rows are written, from the options and the columns.

    Args:
        options: The options of the data source for writing.
        schema: The columns of the DataFrame.

    Raises:
        ValueError: An option is missing or has an invalid value, or a column has no PostgreSQL type.
    """
    if unknown := sorted(options.keys() - _OPTIONS):
        raise ValueError(f"there is no option `{unknown[0]}`; the options are {', '.join(sorted(_OPTIONS))}")
    namespace, _, name = options.get("table", "").partition(".")
    if not (namespace and name):
        raise ValueError(
            "a write needs the option `table`: the name of a table with its schema, such as public.orders"
        )
    version = options.get("proto_version", str(LATEST_RELEASED))
    if version not in map(str, CODECS):
        raise ValueError(
            f"the option `proto_version` must be one of {', '.join(map(str, CODECS))}, not {version!r}"
        )
    key = [one.strip() for one in options["key"].split(",")] if "key" in options else []
    operation = options.get("operation")
    if operation is not None and not key:
        raise ValueError(
            "the option `operation` needs the option `key`: "
            "the columns by which updates and deletes find rows"
        )
    names = schema.names
    if twice := {one for one in names if names.count(one) > 1}:
        raise ValueError(f"several columns have the name {', '.join(sorted(twice))}: rename them")
    columns = [one for one in names if one != operation]
    for option, used, existing in (("key", key, columns), ("operation", [operation], [None, *names])):
        if missing := [one for one in used if one not in existing]:
            wanted = ", ".join(one for one in existing if one) or "none is left"
            raise ValueError(
                f"the option `{option}` names {missing[0]!r}, expected one of the columns: {wanted}"
            )
    relation = Relation(
        oid=0,
        namespace=namespace,
        name=name,
        replica_identity=ReplicaIdentity.DEFAULT if key else ReplicaIdentity.NOTHING,
        columns=tuple(_make_column(schema.field(one), one in key) for one in columns),
    )
    return WrittenTable(
        relation,
        tuple(map(names.index, columns)),
        tuple(columns.index(one) for one in key),
        None if operation is None else names.index(operation),
        int(version),
    )


def _make_column(field: pa.Field, is_key: bool) -> RelationColumn:
    try:
        oid, modifier = default_type(field.type)
    except ValueError as error:
        raise ValueError(f"the column {field.name}: {error}") from None
    return RelationColumn(flags=ColumnFlag(is_key), name=field.name, type_oid=oid, type_modifier=modifier)


def plan_segments(path: str, table: WrittenTable, *, overwrite: bool) -> tuple[WrittenTable, SegmentPlan]:
    """Return the table with an OID, and the plan of the segments to write.

    The new segments continue an existing recording in the folder or, with `overwrite`, replace it.

    Args:
        path: The folder of the recording.
        table: The table to write.
        overwrite: Whether the new segments replace the existing recording.

    Raises:
        ValueError: The folder is not on a local filesystem, or the name of the table cannot be encoded.
        RecordingError: The folder contains something other than a recording written by Spark.
    """
    location = locate(path)
    if not location.is_local:
        raise ValueError(
            f"{location}: expected a local or mounted folder, found a URL: write the segments to a local "
            "folder, and copy them to the URL"
        )
    folder = Path(os.path.abspath(location.path))
    existing = _read_existing(folder)
    oids = {} if overwrite else {_name(one.relation): one.relation.oid for one in schema_versions(existing)}
    oid = oids.get(_name(table.relation), max(oids.values(), default=_FIRST_OID - 1) + 1)
    table = msgspec.structs.replace(table, relation=msgspec.structs.replace(table.relation, oid=oid))
    try:
        CODECS[table.proto_version].encode(table.relation)
    except EncodeError as error:
        raise ValueError(str(error)) from None
    start = SessionStart(session=1, number=1, position=0, lsn=0)
    if existing and not overwrite:
        last = existing[-1]
        start = SessionStart(
            session=last.session + 1, number=last.number + 1, position=last.next_position, lsn=last.end_lsn
        )
    recording = existing[-1].source.recording if existing and not overwrite else str(uuid4())
    source = msgspec.structs.replace(_SOURCE, recording=recording, proto_version=table.proto_version)
    now = time.time_ns() // 1_000 - EPOCH_UNIX_MICROSECONDS
    latest = max([now, *(one.last_commit_time or now for one in existing)])
    return table, SegmentPlan(folder, source, start, latest)


def _name(relation: Relation) -> tuple[str, str]:
    return relation.namespace, relation.name


def _read_existing(folder: Path) -> Sequence[Metadata]:
    """Return the metadata of the segments that Spark has written to a folder.

    Raises:
        RecordingError: The folder contains something other than a recording written by Spark.
    """
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise RecordingError(
            f"{folder}: expected a folder for the recording, found a file: give another path"
        )
    recording = Recording(folder, may_be_empty=True)
    names = {recording.path(number).path.rpartition("/")[2] for number in recording.numbers}
    others = sorted(name.name for name in folder.iterdir() if name.name not in names and name.name[0] != ".")
    if others:
        raise RecordingError(
            f"{folder}: the folder also contains other files, such as {others[0]}: use another folder"
        )
    segments = recording.metadata(recording.numbers)
    for key in ("system_identifier", "database", "slot"):
        if foreign := [one for one in segments if getattr(one.source, key) != getattr(_SOURCE, key)]:
            raise RecordingError(
                f"{folder}: segment {foreign[0].number} was recorded from a server: use another folder"
            )
    recording.check()
    return segments
