"""Sources of a stand-in server: objects that produce the streams that the server sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from logicalrep._servers import default_server, server_version
from logicalrep.messages import PrimaryKeepalive, Relation, Streaming, XLogData
from logicalrep.versions import LATEST_RELEASED

Envelope: TypeAlias = XLogData | PrimaryKeepalive
"""An envelope that a walsender sends: XLogData or a primary keepalive."""


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the pgoutput plugin in a START_REPLICATION command."""

    proto_version: int
    """Protocol version of the messages, 1 or higher."""
    publication_names: tuple[str, ...]
    """Names of the publications whose changes are sent."""
    streaming: Streaming = "off"
    """Whether transactions in progress are streamed: off, on or parallel."""
    two_phase: bool = False
    """Whether transactions are sent when they are prepared: requested by the client or set for the slot."""
    binary: bool = False
    """Whether values are sent in binary format."""
    messages: bool = False
    """Whether logical messages (pg_logical_emit_message) are sent."""
    origin: Literal["any", "none"] = "any"
    """Which changes are sent: `any` for all changes, `none` for changes without a replication origin."""


class Source(Protocol):
    """Provides a stand-in server's streams and catalog data. Several threads may use a source at once."""

    @property
    def server_version(self) -> str:
        """Version of PostgreSQL that the stand-in server reports, such as 18.4."""

    @property
    def system_identifier(self) -> str:
        """System identifier that IDENTIFY_SYSTEM reports."""

    @property
    def database(self) -> str:
        """Name of the only database, or the empty string to accept any database name."""

    @property
    def publications(self) -> tuple[str, ...] | None:
        """Names of the publications, or None to accept any publication name."""

    @property
    def tables(self) -> Sequence[Relation]:
        """Published tables that the stand-in server shows in its catalogs."""

    @property
    def start_lsn(self) -> int:
        """Confirmed flush LSN of a new slot. All transactions end after this LSN."""

    @property
    def end_lsn(self) -> int:
        """LSN of the current end of the WAL."""

    def start(self, options: PluginOptions, after_lsn: int) -> Iterator[Envelope | None]:
        """Return the stream of a new connection, without transactions that ended at or before `after_lsn`.

        After the last available message, the iterator yields a keepalive. If more messages may follow later,
        it then yields None until the next message is available.

        Args:
            options: Options from the client's START_REPLICATION command.
            after_lsn: LSN that the client has acknowledged.

        Raises:
            ReplicationError: The source has no stream with these options. The error names the right options.
        """


class StreamFactory(Protocol):
    """An object that generates streams, such as `logicalrep.synth.Scenario`.

    The generated stream may grow while it is served: a later call of `stream` returns the same messages and
    then new messages, and `end_lsn` is larger.

    A stream factory may have an attribute `published`, a sequence with a `Relation` for each published table.
    The stand-in server then shows these tables in its catalogs, where PostgreSQL's subscribers look them up.
    """

    @property
    def end_lsn(self) -> int:
        """LSN of the current end of the WAL."""

    def stream(
        self,
        *,
        proto_version: int,
        streaming: Streaming,
        two_phase: bool,
        binary: bool,
        messages: bool,
        origin: Literal["any", "none"],
        after_lsn: int = 0,
    ) -> Iterator[Envelope]:
        """Return the envelopes that a server sends for these options.

        Transactions that ended at or before `after_lsn` are left out.
        """


class GeneratedSource:
    """A source that serves the streams of a stream factory.

    Each attribute has the value of the factory's attribute of the same name, if there is one, or a default.

    Attributes:
        server_version: Reported PostgreSQL version; 18.4 by default.
        system_identifier: System identifier that IDENTIFY_SYSTEM reports; 7000000000000000001 by default.
        database: Name of the only database; by default the empty string, which accepts any name.
        publications: Names of the publications; by default None, which accepts any name.
        start_lsn: Confirmed flush LSN of a new slot; 1 by default.

    Args:
        factory: Generates the streams.
    """

    def __init__(self, factory: StreamFactory) -> None:
        self._factory = factory
        self.server_version: str = getattr(
            factory, "server_version", server_version(default_server(LATEST_RELEASED))
        )
        self.system_identifier: str = getattr(factory, "system_identifier", "7000000000000000001")
        self.database: str = getattr(factory, "database", "")
        self.publications: tuple[str, ...] | None = getattr(factory, "publications", None)
        self.start_lsn: int = getattr(factory, "start_lsn", 1)

    @property
    def tables(self) -> Sequence[Relation]:
        """Current published tables; empty if the stream factory has no attribute `published`."""
        return getattr(self._factory, "published", ())

    @property
    def end_lsn(self) -> int:
        """LSN of the current end of the WAL, which may grow."""
        return self._factory.end_lsn

    def start(self, options: PluginOptions, after_lsn: int) -> Iterator[Envelope | None]:
        """Return the stream of a new connection, without transactions that ended at or before `after_lsn`.

        The stream yields None while the next message is not available yet.

        Args:
            options: Options from the client's START_REPLICATION command.
            after_lsn: LSN that the client has acknowledged.
        """
        arguments = msgspec.structs.asdict(options)
        del arguments["publication_names"]
        sent = 0
        while True:
            # Read the end before the stream is generated. If the stream grows meanwhile, `self.end_lsn` then
            # differs from `end_lsn`, and the stream is generated again at once.
            end_lsn = self.end_lsn
            count = 0
            for envelope in self._factory.stream(after_lsn=after_lsn, **arguments):
                count += type(envelope) is XLogData
                if count > sent or not sent:
                    yield envelope
            yield PrimaryKeepalive(wal_end=end_lsn, send_time=0, reply_requested=False)
            sent = count
            while self.end_lsn == end_lsn:
                yield None


def as_source(served: Source | StreamFactory) -> Source:
    """Return `served` if it is a source, or a `GeneratedSource` for a stream factory.

    Raises:
        TypeError: The object is neither a source nor a stream factory.
    """
    if hasattr(served, "start") and hasattr(served, "start_lsn"):
        return served  # type: ignore[return-value]
    if hasattr(served, "stream") and hasattr(served, "end_lsn"):
        return GeneratedSource(served)
    raise TypeError(
        f"cannot serve {served!r}: expected a source (an object with `start` and `start_lsn`) or a scenario "
        "(an object with `stream` and `end_lsn`)"
    )
