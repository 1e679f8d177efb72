"""The format of segments: their columns and their metadata.

A segment is a Parquet file with a part of a recording, one row per message. The first rows are the keyframe;
`Metadata.keyframe` is their number. Messages of the keyframe have no position, as the server did not send
them here. They restore the relations and open transactions at the start of the segment, so that the segment
is a valid stream by itself.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeVar

import msgspec
import pyarrow as pa

from logicalrep.messages import Streaming

_T = TypeVar("_T")

SCHEMA: Final = pa.schema(
    [
        pa.field("position", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("received_at", pa.timestamp("us", tz="UTC")),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
"""Columns of a segment.

- `position`: Number of the message in the recording, from 0. Positions give the order of messages, LSNs do
  not. NULL in the keyframe.
- `lsn`: `wal_start` of the message's XLogData; 0 if the server gives none. NULL in the keyframe.
- `received_at`: When the recorder received the message, by the recorder's clock. NULL in the keyframe.
- `data`: Bytes of the message.
"""

MESSAGE_SCHEMA: Final = pa.schema([field for field in SCHEMA if field.name != "position"])
"""Columns of messages that have no position yet: `SCHEMA` without `position`."""

METADATA_KEY: Final = b"logicalrep"
"""Key under which the metadata of the Parquet file stores the segment's `Metadata`, as JSON."""

CHECKSUM_KEY: Final = b"logicalrep_crc32"
"""Key under which the metadata of the Parquet file stores the CRC-32 of the segment's JSON metadata, in hex.

Parquet has checksums for pages, but none for metadata.
"""

LEASE_KEY: Final = b"logicalrep_lease"
"""Key under which the metadata of the Parquet file stores the number of the recorder's lease, in an object
store only."""

FORMAT: Final = 2
"""Version of the segment format. Readers refuse segments of any other version."""


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """A major upgrade of the recorded server, after which the recording was continued."""

    system_identifier: str
    """System identifier of the database cluster before the upgrade."""
    server_version: str
    """Version of the server before the upgrade."""
    lsn: int
    """LSN of the slot after the upgrade: everything before it was recorded from the earlier server."""
    time: int
    """When the recording was continued, in microseconds since 2000-01-01 00:00 UTC."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The server, slot and options that a session's messages come from."""

    recording: str
    """UUID of the recording: the same in all its segments, and in no other recording."""
    system_identifier: str
    """System identifier of the database cluster, from IDENTIFY_SYSTEM."""
    server_version: str
    database: str
    slot: str
    publications: tuple[str, ...]
    publication_oids: tuple[int, ...] = ()
    """OIDs of the publications (pg_publication.oid); empty if the messages do not come from a server."""
    timeline: int = 0
    """Timeline ID of the server's WAL, from IDENTIFY_SYSTEM; 0 if the messages do not come from a server."""
    upgrades: tuple[Upgrade, ...] = ()
    """Upgrades of the server since the recording began; each gave the cluster another system identifier."""
    proto_version: int
    options: dict[str, str] = {}
    """Options of START_REPLICATION by name, except proto_version and publication_names."""
    slot_two_phase: bool = False
    """Whether the slot sends prepared transactions (two_phase), even with a protocol version below 3."""

    @property
    def streaming(self) -> Streaming:
        """Value of the stream option `streaming`; `off` if `options` lacks it."""
        value: Any = self.options.get("streaming", "off")
        return value  # type: ignore[no-any-return]


class TransactionPart(msgspec.Struct, frozen=True):
    """The part of a transaction that is in one segment.

    A segment's metadata lists such parts for transactions that are streamed, prepared, or not wholly inside
    the segment.
    """

    begin: int
    """Position of the transaction's first message; identifies the transaction, as xids are reused."""
    xid: int
    changes: int
    """Number of inserts, updates, deletes and truncates in the part, rolled-back subtransactions included."""


class TransactionEnd(msgspec.Struct, frozen=True):
    """The message that commits, rolls back or prepares a transaction; listed in the metadata of its segment.

    Only the ends of transactions that are streamed, prepared, or not wholly inside one segment are listed.
    """

    position: int
    """Position of the message that commits, rolls back or prepares the transaction."""
    type: str
    """Name of the message at `position`: Commit, StreamCommit, StreamAbort, Prepare, StreamPrepare,
    CommitPrepared or RollbackPrepared."""
    xid: int
    begin: int | None
    """Position of the transaction's first message; None if the transaction was prepared before the recording
    began."""
    lsn: int | None
    """commit_lsn, prepare_lsn, abort_lsn or, for RollbackPrepared, rollback_end_lsn of the message at
    `position`; None if the message has no LSN."""
    time: int | None = None
    """commit_time, prepare_time, rollback_time or abort_time of the message at `position`, in microseconds
    since 2000-01-01 00:00 UTC; None if the message has no time."""
    segments: tuple[int, ...] = ()
    """Numbers of the segments that have messages of the transaction."""
    rolled_back: tuple[int, ...] = ()
    """Xids of the subtransactions that were rolled back while the transaction was streamed."""
    gid: str | None = None
    """Global identifier of a prepared transaction; None for a transaction that was not prepared."""


class PreparedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is prepared, and neither committed nor rolled back, at the end of a segment."""

    gid: str
    xid: int
    begin: int
    """Position of the transaction's first message."""
    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    """Time of the Prepare, in microseconds since 2000-01-01 00:00 UTC."""
    segments: tuple[int, ...]
    """Numbers of the segments that have messages of the transaction."""
    rolled_back: tuple[int, ...] = ()
    """Xids of the subtransactions that were rolled back while the transaction was streamed."""


class SchemaVersion(msgspec.Struct, frozen=True):
    """A schema version of a relation, as a segment's metadata stores it."""

    position: int
    """Position of the Relation message; the schema version is valid from this position on."""
    lsn: int
    """Last LSN that the server sent before the Relation message, ignoring the LSNs of changes."""
    relation: dict[str, Any]
    """The Relation message as JSON, in the form of `logicalrep.jsonlines`."""
    types: tuple[dict[str, Any], ...] = ()
    """Type messages, as JSON, of those column types that are not built in, such as domains and enums."""


class IncompleteTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows cannot be derived from the recording, because the recording lacks changes."""

    oid: int
    namespace: str
    """Schema of the table; empty for pg_catalog, as in Relation messages."""
    name: str
    lsn: int
    """End of the server's WAL when the recorder last noticed that changes of the table are missing."""
    lost: str
    """Which rows or changes are missing until the table is copied again, and since when; empty for none."""
    lasting: str = ""
    """Which changes the server never sends, not even after a copy of the table; empty for none."""
    altered: bool = False
    """Whether DDL such as ALTER TABLE has changed existing rows, which the server then did not send."""

    @property
    def reason(self) -> str:
        """Why the table is incomplete: text to be shown after the table's name."""
        return "; ".join(filter(None, (self.lost, self.lasting)))


class PublicationChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a recorded publication, which then publishes other tables, rows or columns than before."""

    publication: str
    after_lsn: int
    """End of the server's WAL at the recorder's last check before the change."""
    before_lsn: int
    """End of the server's WAL at the recorder's first check after the change."""
    time: int
    """When the recorder noticed the change, in microseconds since 2000-01-01 00:00 UTC."""
    changes: tuple[str, ...]
    """Differences between the publication before and after the change, each as a short sentence."""


class GoneTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was published, and was then dropped on the server, or is not published any more."""

    oid: int
    namespace: str
    """Schema of the table; empty for pg_catalog, as in Relation messages."""
    name: str
    after_lsn: int
    """End of the server's WAL when the recorder last found the table in the catalogs, or shortly before."""
    time: int
    """When the recorder noticed that the table was gone, in microseconds since 2000-01-01 00:00 UTC."""
    is_dropped: bool = True
    """Whether the table was certainly dropped; False if it may only have left the publication."""


class RenamedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A published table with another name or schema, or other column names, than the stream has shown."""

    oid: int
    namespace: str
    """Schema of the table; empty for pg_catalog, as in Relation messages."""
    name: str
    lsn: int
    """End of the server's WAL when the recorder read the names."""
    columns: tuple[tuple[str, str], ...] = ()
    """Renamed columns, in the order of the renames: earlier and new name of each."""


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a segment."""

    format: int = FORMAT
    """Version of the segment format."""
    kind: Literal["stream", "snapshot"]
    """Origin of the messages: sent by the server (stream), or made from the tables' rows when the slot was
    created (snapshot)."""
    number: int
    """Number of the segment in the recording, from 1."""
    session: int
    """Number of the session, from 1; 0 for the snapshot. Transactions that are open at the end of a session
    are void, as the server sends them again; prepared transactions stay valid."""
    source: Source
    first_position: int
    """Position of the segment's first message; without messages, the position that the next message gets."""
    messages: int
    """Number of the segment's messages, without the keyframe."""
    keyframe: int
    """Number of messages in the keyframe."""
    start_lsn: int
    """LSN before the segment: transactions with an end LSN up to this one are in earlier segments."""
    end_lsn: int
    """LSN after the segment: transactions with an end LSN up to this one are in this or earlier segments."""
    transactions: int = 0
    """Number of transactions that commit in this segment."""
    last_commit_time: int | None = None
    """Time of the segment's last commit, in microseconds since 2000-01-01 00:00 UTC; None without commits."""
    relations: tuple[SchemaVersion, ...] = ()
    """Schema versions that begin in this segment."""
    parts: tuple[TransactionPart, ...] = ()
    ends: tuple[TransactionEnd, ...] = ()
    prepared: tuple[PreparedTransaction, ...] = ()
    incomplete: tuple[IncompleteTable, ...] = ()
    """All tables that are incomplete at the end of the segment."""
    publication_changes: tuple[PublicationChange, ...] = ()
    """Changes of publications that the recorder noticed since it stored the preceding segment."""
    gone: tuple[GoneTable, ...] = ()
    """Tables that the recorder found dropped or unpublished since it stored the preceding segment. This and
    earlier segments have all changes of these tables."""
    following_columns: dict[int, tuple[str, ...]] = {}
    """Names of altered columns whose existing values follow from earlier ones, by OID of the table."""
    renamed: tuple[RenamedTable, ...] = ()
    """Tables that the recorder found renamed since it stored the preceding segment, with the names that they
    have at the end of the segment."""

    @property
    def next_position(self) -> int:
        """Position of the first message after the segment."""
        return self.first_position + self.messages


def encode_metadata(metadata: Metadata) -> bytes:
    """Return a segment's metadata as JSON, as `encode_json` does."""
    return encode_json(metadata)


def encode_json(value: msgspec.Struct) -> bytes:
    r"""Return a value as JSON, even if names of the database in it are not valid UTF-8.

    Names and gids of a SQL_ASCII database can contain bytes that are not valid UTF-8. Each such byte is
    written as the escape of its surrogate (PEP 383): 0xff is `\udcff`.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def decode_metadata(raw: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Decode the JSON of `encode_json`, or some of its fields.

    Args:
        raw: The JSON.
        decoder: Decoder of `Metadata`, or of a type with some of its fields.

    Raises:
        ValueError: The bytes are not JSON.
        msgspec.DecodeError: The JSON does not match the decoder's type.
        RecursionError: The JSON is nested too deeply.
    """
    if _SURROGATE not in raw:
        return decoder.decode(raw)
    return msgspec.convert(json.loads(raw), decoder.type)  # msgspec.json refuses surrogates


_SURROGATE: Final = rb"\udc"
