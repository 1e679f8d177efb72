"""Serve a recording or capture file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from os import PathLike
from threading import Lock
from typing import Final, TypeAlias

import msgspec

from logicalrep import _protocols
from logicalrep._layout import Field
from logicalrep._offsets import layout_of
from logicalrep._roles import ROLES, tags
from logicalrep.catalog import TYPES
from logicalrep.errors import ReplicationError
from logicalrep.messages import Message, PrimaryKeepalive, Relation
from logicalrep.standin.recorded.envelopes import assign_lsns
from logicalrep.standin.recorded.index import StreamIndex, index_stream
from logicalrep.standin.recorded.recording import RecordedStream, open_stream
from logicalrep.standin.recorded.resumption import resume
from logicalrep.standin.recorded.transcoding import TranscodedStream
from logicalrep.standin.source import Envelope, PluginOptions


class RecordedSource:
    """A source that serves a recording or capture file.

    A client may request other options than the recorded ones. It then receives the stream that a server would
    send for the requested options: in the requested protocol version, without messages that need other
    options, and with each streamed or prepared transaction as a whole unless the client has requested
    `streaming` or `two_phase`. Such a transaction is kept in memory until its commit. An option is refused if
    it needs data that was not recorded, such as `two_phase`. The option `messages` is always accepted, but
    only recorded logical messages are sent.

    Creating the source reads all messages, or only the segments' metadata if that is enough to index the
    stream. Each connection reads all messages again.

    Attributes:
        server_version: PostgreSQL version of the recorded server.
        system_identifier: System identifier of the recorded server.
        database: Name of the recorded database, or the empty string to accept any name.
        publications: Names of the recorded publications, or None to accept any name.
        tables: Last Relation message of each recorded table.
        start_lsn: LSN before the first transaction of the stream.
        end_lsn: LSN of the end of the stream.

    Args:
        path: Capture file, folder or URL of a recording, or the only segment of a recording.

    Raises:
        RecordingError: The recording cannot be read, is incomplete, or contains more than one stream.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._stream: RecordedStream = open_stream(path)
        self._index: StreamIndex = index_stream(self._stream)
        self._transcodings: dict[PluginOptions, tuple[RecordedStream, StreamIndex]] = {}
        self._lock = Lock()
        self.server_version: str = self._stream.server_version
        self.system_identifier: str = self._stream.system_identifier
        self.database: str = self._stream.database
        self.publications: tuple[str, ...] | None = self._stream.options.publication_names or None
        self.tables: tuple[Relation, ...] = tuple(self._index.relations.values())
        self.start_lsn: int = self._index.start_lsn
        self.end_lsn: int = self._index.end_lsn

    def start(self, options: PluginOptions, after_lsn: int) -> Iterator[Envelope]:
        """Return the stream of a new connection, without transactions that ended at or before `after_lsn`.

        Args:
            options: Options from the client's START_REPLICATION command.
            after_lsn: LSN that the client has acknowledged.

        Raises:
            ReplicationError: The stream cannot be converted to these options, or has other publications.
        """
        stream, index, recorded = self._stream, self._index, self._stream.options
        different = [name for name, matches in _MATCHERS.items() if not matches(index, recorded, options)]
        refused = [name for name in different if not _CONVERTIBLE[name](index, recorded, options)]
        if refused:
            raise ReplicationError(
                f"this stream was recorded with {_format_options(recorded, _MATCHERS)}: "
                f"request these options instead of {_format_options(options, refused)}"
            )
        if self.publications and set(options.publication_names) != set(self.publications):
            raise ReplicationError(
                f"this stream was recorded with the publications {', '.join(self.publications)}: "
                "request all of them"
            )
        if different:
            stream, index = self._transcoded(options)
        messages = stream.messages() if index.has_lsns else assign_lsns(stream, index.start_lsn)
        envelopes = resume(messages, stream, index, after_lsn)
        return chain(envelopes, [PrimaryKeepalive(wal_end=self.end_lsn, send_time=0, reply_requested=False)])

    def _transcoded(self, options: PluginOptions) -> tuple[RecordedStream, StreamIndex]:
        """Return the recorded stream converted to `options`, and the index of the converted stream."""
        with self._lock:
            if options not in self._transcodings:
                fields = msgspec.structs.asdict(self._stream) | {"options": options, "metadata": ()}
                stream = TranscodedStream(recorded=self._stream, **fields)
                self._transcodings[options] = stream, index_stream(stream)
            return self._transcodings[options]


OptionMatcher: TypeAlias = Callable[[StreamIndex, PluginOptions, PluginOptions], bool]
"""Function that returns whether a stream suits the requested value of an option.

Arguments: the stream's index, the recorded options, and the requested options."""


def _streaming_matches(index: StreamIndex, recorded: PluginOptions, requested: PluginOptions) -> bool:
    """Return whether the stream has the same bytes for the recorded and the requested value of `streaming`.

    Without stream blocks, all values give the same bytes. Without Stream Abort, `on` and `parallel` give the
    same bytes, because only the encoding of Stream Abort differs.
    """
    if requested.streaming == recorded.streaming or index.tags.isdisjoint(tags("open_block")):
        return True
    return requested.streaming != "off" and index.tags.isdisjoint(tags("abort_streamed"))


def _proto_version_matches(index: StreamIndex, recorded: PluginOptions, requested: PluginOptions) -> bool:
    """Return whether the stream has the same bytes in the recorded and the requested protocol version.

    Fields that are sent only under a condition are not compared. The conditions depend on stream blocks and
    the option `streaming`, not on the protocol version.
    """
    kinds = [kind for kind in ROLES if ord(kind.wire_tag) in index.tags]
    one, other = (
        [_unconditional(kind, asked.proto_version) for kind in kinds] for asked in (recorded, requested)
    )
    return one == other


def _unconditional(kind: type[Message], proto_version: int) -> list[Field] | None:
    layout = layout_of(kind, proto_version)
    return None if layout is None else [field for field in layout.fields if field.when is None]


def _equal_or_unused(name: str, default: object, added: Collection[int]) -> OptionMatcher:
    """Return a function that compares the requested and the recorded value of a stream option.

    The function returns true if the values are equal. It also returns true if `default` is requested and the
    stream contains none of the messages that other values of the option add.

    Args:
        name: Name of the option.
        default: Default value of the option.
        added: Tags of the messages that other values of the option add.
    """

    def matches(index: StreamIndex, recorded: PluginOptions, requested: PluginOptions) -> bool:
        value: object = getattr(requested, name)
        if value == getattr(recorded, name):
            return True
        return value == default and index.tags.isdisjoint(added)

    return matches


def _option_tags(name: str) -> set[int]:
    """Return the tags of the messages that a server sends only if the stream option `name` is set."""
    return {ord(layout.tag) for layout in _protocols.ALL_VERSIONS.messages if layout.option == name}


_MATCHERS: Final[Mapping[str, OptionMatcher]] = {
    "proto_version": _proto_version_matches,
    "streaming": _streaming_matches,
    "two_phase": _equal_or_unused("two_phase", False, _option_tags("two_phase")),
    "binary": lambda index, recorded, requested: requested.binary == recorded.binary,
    "messages": _equal_or_unused("messages", False, _option_tags("messages")),
    "origin": _equal_or_unused("origin", "none", tags("origin")),
}
"""By option name, a function that returns whether the stream has the same bytes for the requested value."""


def _formats_convertible(index: StreamIndex, recorded: PluginOptions, requested: PluginOptions) -> bool:
    """Return whether the stream's values can be converted to the requested text or binary format.

    Conversion to text needs built-in types. Conversion to binary is always possible: values of other types
    remain text, as a server sends text for types without a binary format.
    """
    columns = (column for relation in index.relations.values() for column in relation.columns)
    return requested.binary or all(column.type_oid in _BUILTIN_TYPES for column in columns)


_BUILTIN_TYPES: Final = {oid for one in TYPES for oid in (one.oid, one.array_oid)}

_CONVERTIBLE: Final[Mapping[str, OptionMatcher]] = {
    "proto_version": lambda index, recorded, requested: True,
    # No conversion to `parallel`: its Stream Abort messages have an LSN and a time, which were not recorded.
    "streaming": lambda index, recorded, requested: requested.streaming != "parallel",
    "two_phase": lambda index, recorded, requested: not requested.two_phase,
    "binary": _formats_convertible,
    # Accepted because Debezium always requests logical messages, even if none were recorded.
    "messages": lambda index, recorded, requested: True,
    "origin": lambda index, recorded, requested: requested.origin == "none",
}
"""By option name, a function that returns whether the stream can be converted to the requested value."""


def _format_options(options: PluginOptions, names: Iterable[str]) -> str:
    values = ((name, getattr(options, name)) for name in names)
    return ", ".join(
        f"{name} {_ON_OFF[value] if isinstance(value, bool) else value}" for name, value in values
    )


_ON_OFF: Final = {True: "on", False: "off"}
