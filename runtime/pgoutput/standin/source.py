"""What a stand-in serves: where its messages come from, and with which options they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from pgoutput.errors import ReplicationError
from pgoutput.messages import PrimaryKeepalive, Relation, Streaming, XLogData
from pgoutput.versions import OPTIONS

Sent: TypeAlias = XLogData | PrimaryKeepalive
"""What a walsender sends."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a START_REPLICATION."""

    proto_version: int
    publication_names: tuple[str, ...]
    streaming: Streaming = "off"
    two_phase: bool = False
    """Whether transactions come when they are prepared: the option, or the flag of the slot."""
    binary: bool = False
    messages: bool = False
    origin: Literal["any", "none"] = "any"


class Source(Protocol):
    """What a server holds. Several threads may read it at once."""

    @property
    def server_version(self) -> str:
        """Of the server that it is taken for: 18.4."""

    @property
    def system_identifier(self) -> str:
        """As IDENTIFY_SYSTEM gives it."""

    @property
    def database(self) -> str:
        """The only database; the empty text for any that a client names."""

    @property
    def publications(self) -> tuple[str, ...] | None:
        """The publications that there are; None for any that a client names."""

    @property
    def tables(self) -> Sequence[Relation]:
        """The published tables, for look-ups, as far as they are known."""

    @property
    def start_lsn(self) -> int:
        """Where a new slot stands: before everything."""

    @property
    def end_lsn(self) -> int:
        """The end of the WAL."""

    def start(self, wanted: Wanted, after_lsn: int) -> Iterator[Sent | None]:
        """What a new connection is sent, without the transactions that ended at or before an LSN.

        Behind all that there is stands a keepalive. What may grow gives None then, again and again, until it
        has grown.

        Args:
            wanted: The options that the client asks for.
            after_lsn: What ended up to here, it has.

        Raises:
            ReplicationError: The source has no stream with these options; the text says with which.
        """


class Streams(Protocol):
    """What makes streams by itself, a `pgoutput.synth.Scenario` for instance.

    It may grow while it is served: streams that are made later begin with what was in those before, and
    `end_lsn` is larger.
    """

    @property
    def end_lsn(self) -> int:
        """The end of the WAL."""

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
    ) -> Iterator[Sent]:
        """What a server sends that is asked with these options."""


class StreamsSource:
    """A Source of what makes streams.

    Attributes:
        server_version: As `Source` has it, and so the others.

    Args:
        streams: What makes them. Where it says nothing else, it is a PostgreSQL 18 with any database and any
            publication that a client names.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

        def said(name: str, default: Any) -> Any:
            return getattr(streams, name, default)

        self.server_version: str = said("server_version", "18.4")
        self.system_identifier: str = said("system_identifier", "7000000000000000001")
        self.database: str = said("database", "")
        self.publications: tuple[str, ...] | None = said("publications", None)
        self.tables: Sequence[Relation] = ()
        self.start_lsn: int = said("start_lsn", 1)

    @property
    def end_lsn(self) -> int:
        """The end of the WAL, which may grow."""
        return self._streams.end_lsn

    def start(self, wanted: Wanted, after_lsn: int) -> Iterator[Sent | None]:
        """As `Source.start`."""
        needed = OPTIONS["two_phase"]["on"].proto_version
        if wanted.two_phase and wanted.proto_version < needed:
            raise ReplicationError(
                f"the slot has the flag two_phase: ask for proto_version {needed} or higher, "
                "or create a slot without it"
            )
        return self._follow(wanted, after_lsn)

    def _follow(self, wanted: Wanted, after_lsn: int) -> Iterator[Sent | None]:
        options = msgspec.structs.asdict(wanted)
        del options["publication_names"]
        sent = 0
        while True:
            end_lsn = self.end_lsn  # asked first: what is done meanwhile comes now, or the next time
            count = 0
            for one in self._streams.stream(after_lsn=after_lsn, **options):
                count += type(one) is XLogData
                if count > sent or not sent:
                    yield one
            yield PrimaryKeepalive(end_lsn, 0, False)
            sent = count
            while self.end_lsn == end_lsn:
                yield None


def as_source(given: Source | Streams) -> Source:
    """The source itself, or one of what makes streams.

    Raises:
        TypeError: It is neither.
    """
    if hasattr(given, "start") and hasattr(given, "start_lsn"):
        return given  # type: ignore[return-value]
    if hasattr(given, "stream") and hasattr(given, "end_lsn"):
        return StreamsSource(given)
    raise TypeError(f"a source has start and end_lsn, a scenario stream and end_lsn; {given!r} has not")
