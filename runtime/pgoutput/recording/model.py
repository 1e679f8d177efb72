"""What a segment is: the columns of the file, and what its metadata says.

A segment is a Parquet file with a part of a recording. One row is one message of pgoutput. The rows in
front, `Metadata.keyframe` of them, have no position: they are not from the server, but say again what was
still in force where the segment begins, so that the segment is a legal stream by itself.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeVar

import msgspec
import pyarrow as pa

from pgoutput.messages import Streaming

_T = TypeVar("_T")

SCHEMA: Final = pa.schema(
    [
        pa.field("position", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("received_at", pa.timestamp("us", tz="UTC")),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
"""The columns of a segment.

- `position`: Running number of the message in the recording, from 0: the order that LSNs do not give. NULL
  for the rows of the keyframe, and so are the next two.
- `lsn`: `wal_start` of its XLogData, which is 0 where the server gives none.
- `received_at`: When it was read from the connection, by the clock of the recorder.
- `data`: The message.
"""

SENT: Final = pa.schema([field for field in SCHEMA if field.name != "position"])
"""Those of messages that have no position yet."""

METADATA_KEY: Final = b"pgoutput"
"""The key of a Parquet file's metadata under which a segment's `Metadata` stands, as JSON."""

CHECKSUM_KEY: Final = b"pgoutput_crc32"
"""The key of the CRC-32 of that JSON, in hex. Parquet has checksums for its pages, but for no metadata."""

FORMAT: Final = 2
"""The number of this layout of segments. Readers refuse any other."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session's messages come from, and how they were asked for."""

    recording: str
    """Identity of the recording: a UUID, the same in all its segments and in no other recording."""
    system_identifier: str
    """Of the database cluster, from IDENTIFY_SYSTEM."""
    server_version: str
    database: str
    slot: str
    publications: tuple[str, ...]
    publication_oids: tuple[int, ...] = ()
    """pg_publication.oid of each; empty where no server was recorded."""
    timeline: int = 0
    """Timeline ID of the server's WAL, from IDENTIFY_SYSTEM; 0 where no server was recorded."""
    proto_version: int
    options: dict[str, str] = {}
    """The other options of START_REPLICATION."""
    slot_two_phase: bool = False

    @property
    def streaming(self) -> Streaming:
        """The option `streaming`; `off` if it is not there."""
        value: Any = self.options.get("streaming", "off")
        return value  # type: ignore[no-any-return]


class Part(msgspec.Struct, frozen=True):
    """The changes of one transaction in one segment.

    Listed are transactions that are streamed, prepared, or not wholly inside the segment.
    """

    begin: int
    """Position of the transaction's first message. It names the transaction; xids are used again."""
    xid: int
    changes: int
    """Inserts, updates, deletes and truncates, those of rolled-back savepoints included."""


class End(msgspec.Struct, frozen=True):
    """The end of one such transaction, or its Prepare."""

    position: int
    """Of the message that ends it."""
    type: str
    """Name of that message: Commit, StreamCommit, StreamAbort, Prepare, StreamPrepare, CommitPrepared or
    RollbackPrepared."""
    xid: int
    begin: int | None
    """As in `Part`. None if the recording does not have the transaction: it was prepared before."""
    lsn: int | None
    """The message's commit_lsn, prepare_lsn or abort_lsn, if it has one; of RollbackPrepared, the end of the
    rollback."""
    time: int | None = None
    """Its commit_time, prepare_time, rollback_time or abort_time likewise, in microseconds since 2000."""
    segments: tuple[int, ...] = ()
    """Numbers of the segments that have messages of the transaction."""
    rolled_back: tuple[int, ...] = ()
    """Xids of subtransactions that were rolled back while they were streamed."""
    gid: str | None = None


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is prepared where the segment ends. Later sessions go on with it."""

    gid: str
    xid: int
    begin: int
    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    segments: tuple[int, ...]
    rolled_back: tuple[int, ...] = ()


class Epoch(msgspec.Struct, frozen=True):
    """From here on a relation looks as its message says; until then it looked otherwise, or was not known."""

    position: int
    lsn: int
    """The last LSN that the stream gave before, but for those of changes."""
    relation: dict[str, Any]
    """The Relation message, in the form of `pgoutput.jsonlines`."""
    types: tuple[dict[str, Any], ...] = ()
    """The Type messages of its columns' types, where there were such: of domains, enums and the like."""


class Incomplete(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows cannot be derived from the recording, because it lacks some of them."""

    oid: int
    namespace: str
    """Empty for pg_catalog, as in Relation messages."""
    name: str
    lsn: int
    """End of the server's WAL when the recorder noticed it."""
    reason: str
    """Why, and since when; to be shown behind the table's name."""


class PublicationChange(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded publication was altered: it publishes other tables, rows or columns than before."""

    publication: str
    after_lsn: int
    before_lsn: int
    """Ends of the server's WAL at the recorder's last two looks: the change lies between them."""
    time: int
    """When the recorder noticed it, in microseconds since 2000-01-01 00:00 UTC."""
    changes: tuple[str, ...]
    """What is different, each as a short sentence."""


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a segment says of itself."""

    format: int = FORMAT
    kind: Literal["stream", "snapshot"]
    """Whether the server sent the messages, or they tell what tables held when the slot began."""
    number: int
    """Running number of the segment in the recording, from 1."""
    session: int
    """Running number of the connection; 0 for snapshots. Where a session begins, transactions that were
    open are void, since the server sends them again; prepared ones stay."""
    source: Source
    first_position: int
    """Position of the first message, or of the one that comes next if there is none."""
    messages: int
    """How many, without the keyframe."""
    keyframe: int
    """How many rows stand before them."""
    start_lsn: int
    """What ended up to here, this recording had before."""
    end_lsn: int
    """What ended up to here, it has now."""
    transactions: int = 0
    """How many were committed here."""
    last_commit_time: int | None = None
    """Microseconds since 2000-01-01 00:00 UTC."""
    relations: tuple[Epoch, ...] = ()
    parts: tuple[Part, ...] = ()
    ends: tuple[End, ...] = ()
    prepared: tuple[Prepared, ...] = ()
    incomplete: tuple[Incomplete, ...] = ()
    """All tables that are incomplete where the segment ends."""
    publication_changes: tuple[PublicationChange, ...] = ()
    """Changes of publications that were noticed since the segment before was stored."""

    @property
    def next_position(self) -> int:
        """The position behind the last message."""
        return self.first_position + self.messages


def encode_metadata(metadata: Metadata) -> bytes:
    r"""Return the metadata as JSON.

    Names and gids of a SQL_ASCII database can hold bytes that are not valid UTF-8. Each such byte is written
    as the escape of its surrogate (PEP 383): 0xff is `\udcff`.
    """
    try:
        return msgspec.json.encode(metadata)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(metadata), separators=(",", ":")).encode()


def decode_metadata(raw: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Return what `encode_metadata` encoded, or some of it.

    Args:
        raw: The JSON.
        decoder: The decoder of `Metadata`, or of a type with some of its fields.

    Raises:
        ValueError: It is not such JSON.
        msgspec.DecodeError: Likewise.
        RecursionError: It is nested too deeply.
    """
    if _SURROGATE not in raw:
        return decoder.decode(raw)
    return msgspec.convert(json.loads(raw), decoder.type)  # msgspec reads no surrogates


_SURROGATE: Final = rb"\udc"
