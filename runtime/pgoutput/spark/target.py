"""What a write makes: the table that its rows are of, and where in a recording they go."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyarrow import fs

from pgoutput.errors import EncodeError, RecordingError
from pgoutput.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity
from pgoutput.recording import Metadata, Recording, SessionStart, Source, locate
from pgoutput.values import default_type
from pgoutput.versions import CODECS, LATEST
from pgoutput.views import schema_versions
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_FIRST_OID: Final = 16_384
"""FirstNormalObjectId."""

_OPTIONS: Final = frozenset(("path", "table", "key", "operation", "proto_version"))

STRIDE: Final = 1 << 40
"""Positions and LSNs that are set aside for each segment, as several are written at a time."""

_SOURCE: Final = Source(
    recording="",
    system_identifier="0",
    server_version="",
    database="spark",
    slot="spark",
    publications=(),
    proto_version=1,
)
"""Where the stream comes from. No database cluster has the number 0."""


class Target(msgspec.Struct, frozen=True):
    """The table, and how its rows become messages."""

    relation: Relation
    places: tuple[int, ...]
    """Where its columns stand among those of the rows."""
    key: tuple[int, ...]
    """Which of them are the primary key."""
    operation: int | None
    """Where the operation stands among the columns of the rows."""
    proto_version: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(column.name for column in self.relation.columns)


class Place(msgspec.Struct, frozen=True):
    """Where the segments go, one for each partition; each is a session of its own."""

    folder: Path
    source: Source
    start: SessionStart
    """Of the first."""
    time: int
    """When all of it was committed, in microseconds since 2000."""

    def start_of(self, partition: int) -> SessionStart:
        """Where the segment of a partition begins."""
        first, skipped = self.start, partition * STRIDE
        return SessionStart(
            session=first.session + partition,
            number=first.number + partition,
            position=first.position + skipped,
            lsn=first.lsn + skipped,
        )


def read_target(given: Mapping[str, str], schema: pa.Schema) -> Target:
    """What the options of a write say of the table.

    Args:
        given: The options.
        schema: The columns of the rows.

    Raises:
        ValueError: An option is missing, or is not what it can be; or a column has no type in PostgreSQL.
    """
    if unknown := sorted(given.keys() - _OPTIONS):
        raise ValueError(f"there is no option {unknown[0]}; a write has {', '.join(sorted(_OPTIONS))}")
    namespace, _, name = given.get("table", "").partition(".")
    if not (namespace and name):
        raise ValueError("a write needs the option table: which the rows are of, as public.orders")
    version = given.get("proto_version", str(LATEST))
    if version not in map(str, CODECS):
        raise ValueError(f"the option proto_version is one of {', '.join(map(str, CODECS))}, not {version!r}")
    key = [one.strip() for one in given["key"].split(",")] if "key" in given else []
    operation = given.get("operation")
    if operation is not None and not key:
        raise ValueError("the option operation needs the option key: which rows updates and deletes are of")
    names = schema.names
    if twice := {one for one in names if names.count(one) > 1}:
        raise ValueError(f"several columns are called {', '.join(sorted(twice))}")
    columns = [one for one in names if one != operation]
    for option, wanted, there in (("key", key, columns), ("operation", [operation], [None, *names])):
        if missing := [one for one in wanted if one not in there]:
            raise ValueError(
                f"the option {option} names {missing[0]!r}, but the columns are {', '.join(names)}"
            )
    relation = Relation(
        0,
        namespace,
        name,
        ReplicaIdentity.DEFAULT if key else ReplicaIdentity.NOTHING,
        tuple(_column(schema.field(one), one in key) for one in columns),
    )
    places = tuple(map(names.index, columns))
    return Target(
        relation,
        places,
        tuple(columns.index(one) for one in key),
        None if operation is None else names.index(operation),
        int(version),
    )


def _column(field: pa.Field, is_key: bool) -> RelationColumn:
    try:
        return RelationColumn(ColumnFlag.KEY if is_key else 0, field.name, *default_type(field.type))
    except ValueError as error:
        raise ValueError(f"the column {field.name}: {error}") from None


def find_place(path: str, target: Target, *, overwrite: bool) -> tuple[Target, Place]:
    """Where the rows go: behind what the recording has, or to its beginning; the table has its OID then.

    Args:
        path: The folder.
        target: The table.
        overwrite: Whether what is there goes.

    Raises:
        ValueError: The folder is not of this machine, or the table has a name that cannot be sent.
        RecordingError: It has other things in it than recordings that were written so.
    """
    location = locate(path)
    if not isinstance(location.filesystem, fs.LocalFileSystem):
        raise ValueError(
            f"{location}: segments are written to folders that are mounted; copy them from there"
        )
    folder = Path(os.path.abspath(location.path))
    before = _written(folder)
    known = {} if overwrite else {_name(one.relation): one.relation.oid for one in schema_versions(before)}
    oid = known.get(_name(target.relation), max(known.values(), default=_FIRST_OID - 1) + 1)
    target = msgspec.structs.replace(target, relation=msgspec.structs.replace(target.relation, oid=oid))
    try:
        CODECS[target.proto_version].encode(target.relation)
    except EncodeError as error:
        raise ValueError(str(error)) from None
    start = SessionStart(session=1, number=1, position=0, lsn=0)
    if before and not overwrite:
        last = before[-1]
        start = SessionStart(
            session=last.session + 1, number=last.number + 1, position=last.next_position, lsn=last.end_lsn
        )
    recording = before[-1].source.recording if before and not overwrite else str(uuid4())
    source = msgspec.structs.replace(_SOURCE, recording=recording, proto_version=target.proto_version)
    now = time.time_ns() // 1_000 - EPOCH_UNIX_MICROSECONDS
    return target, Place(folder, source, start, max([now, *(one.last_commit_time or now for one in before)]))


def _name(relation: Relation) -> tuple[str, str]:
    return relation.namespace, relation.name


def _written(folder: Path) -> Sequence[Metadata]:
    """What a folder has already that was written so."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise RecordingError(f"{folder}: it is a file, and a recording is a folder")
    recording = Recording(folder, may_be_empty=True)
    names = {recording.path(number).path.rpartition("/")[2] for number in recording.numbers}
    others = sorted(name.name for name in folder.iterdir() if name.name not in names and name.name[0] != ".")
    if others:
        raise RecordingError(f"{folder}: other things are in it, as {others[0]}: use another folder")
    found = recording.metadata(recording.numbers)
    for key in ("system_identifier", "database", "slot"):
        if strange := [one for one in found if getattr(one.source, key) != getattr(_SOURCE, key)]:
            raise RecordingError(
                f"{folder}: segment {strange[0].number} is of a server's stream: use another folder"
            )
    recording.check()
    return found
