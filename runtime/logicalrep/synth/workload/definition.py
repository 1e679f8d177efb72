"""The definition of a workload: its profile, size and stream options."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final, Literal, TypeAlias, get_args
from uuid import NAMESPACE_URL, uuid5

import msgspec

from logicalrep._servers import default_server, newest_version, server_version
from logicalrep.messages import Streaming
from logicalrep.recording import Source
from logicalrep.synth.export import make_source
from logicalrep.synth.options import StreamOptions, require_server
from logicalrep.synth.programs import Operations
from logicalrep.versions import LATEST_RELEASED

MAX_TABLES: Final = 500
"""Maximum number of tables of a workload."""
MIN_LARGE_CHANGES: Final = 100
"""Minimum number of changes of a large transaction, enough for several stream blocks."""

MAX_TRANSACTION_BYTES: Final = 256 << 20
"""Maximum size of a transaction, in bytes. Each transaction is built in memory as a whole."""

_MESSAGE_OVERHEAD_BYTES: Final = 90
"""Approximate maximum size of a message without its text values, in bytes."""


_VARIED_MESSAGES: Final = 30
"""Approximate size of a varied transaction (see `Profile`), as a number of messages of mean size."""


class Mix(msgspec.Struct, frozen=True):
    """Relative frequencies of inserts, updates and deletes."""

    insert: float = 6
    update: float = 3
    delete: float = 1


class Range(msgspec.Struct, frozen=True):
    """Range of uniformly distributed integers, bounds included."""

    first: int
    last: int

    @property
    def mean(self) -> float:
        """Mean of the integers in the range."""
        return (self.first + self.last) / 2


ReplicaIdentityName: TypeAlias = Literal["default", "full", "index", "nothing"]
"""Replica identity of a table. `index` is a unique index on the key columns."""


class ColumnShape(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a workload's table: its type, fraction of NULLs and sizes of values."""

    name: str
    type_oid: int
    type_modifier: int = -1
    """Type modifier (atttypmod), -1 for none."""
    key: bool = False
    """Whether the column is part of the key."""
    nulls: float = 0
    """Fraction of NULLs among the values, from 0 to 1."""
    sizes: tuple[int, ...] = (4,)
    """Equidistant quantiles of the sizes of values in text format, in bytes, from the least size to the
    greatest. Used only for strings, bytea and JSON."""


class TableShape(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a workload."""

    name: str
    namespace: str = "public"
    columns: tuple[ColumnShape, ...]
    replica_identity: ReplicaIdentityName = "default"

    def identifies(self, column: ColumnShape) -> bool:
        """Return whether a column is part of the replica identity."""
        if self.replica_identity == "full":
            return True
        return column.key and self.replica_identity != "nothing"


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Number and kinds of the tables, transactions and changes in a workload.

    Most transactions only insert, update and delete rows. Varied transactions have all kinds and forms of
    messages, and change separate tables.
    """

    tables: int = 20
    """Number of tables, except those of varied transactions."""
    changes: Range = Range(10, 10)
    """Least and greatest number of changes in a transaction that is not large."""
    mix: Mix = Mix()
    """Relative frequencies of inserts, updates and deletes."""
    value_sizes: Range = Range(10, 50)
    """Least and greatest size of text values, in bytes. Sizes of other values are not configurable."""
    large: float = 0.001
    """Fraction of all transactions that are large, from 0 to 1. If `streaming` is `on` or `parallel`, large
    transactions are sent in stream blocks."""
    large_changes: int = 10_000
    """Number of changes in a large transaction."""
    replica_identity: ReplicaIdentityName = "default"
    """Replica identity of the tables, except those of varied transactions."""
    varied: float = 0
    """Fraction of all transactions that are varied (have all kinds of messages), from 0 to 1."""
    operations: Operations = Operations()
    """Relative frequencies of the operations in varied transactions."""
    shapes: tuple[TableShape, ...] = ()
    """The tables, except those of varied transactions. Empty for `tables` default tables."""
    patterns: tuple[tuple[int, ...], ...] = ()
    """Lists of changes; empty for random changes. Each transaction that is neither varied nor large makes the
    changes of one list. A change is 3 * index of its table, plus 0 (insert), 1 (update) or 2 (delete)."""

    @property
    def table_count(self) -> int:
        """Number of tables, except those of varied transactions (those with all kinds of messages)."""
        return len(self.shapes) or self.tables


class Workload(Profile, frozen=True, kw_only=True, dict=True):
    """Definition of a large synthetic stream for load tests. The same definition gives the same stream.

    Raises:
        ValueError: A value is out of bounds, or the protocol version or server does not support an option.
    """

    transactions: int = 1_000
    """Number of transactions."""
    seed: int = 0
    """Seed of all random choices, 0 or greater."""
    server: int | None = None
    """Major version of the PostgreSQL server; None for 18, or later if `proto_version` needs it."""
    proto_version: int | None = None
    """Version of the logical replication protocol; None for the newest released version of the server."""
    streaming: Streaming = "off"
    """As in `StreamOptions`. So are `two_phase`, `binary` and `messages`."""
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: Literal["any", "none"] = "any"
    """With `none` no transaction has a replication origin."""

    def __post_init__(self) -> None:
        require_server(self.server_major, msgspec.structs.asdict(self.options))
        mix, large = self.mix, self.large_changes if self.large else 0
        names = get_args(ReplicaIdentityName)
        most = max(self.changes.last, large, self.tables, *map(len, self.patterns))
        size = most * (_MESSAGE_OVERHEAD_BYTES + 2 * self.value_sizes.last)
        for holds, text in (
            (
                self.replica_identity in names,
                f"replica_identity must be one of {', '.join(names)}, not {self.replica_identity!r}",
            ),
            (1 <= self.tables <= MAX_TABLES, f"tables must be between 1 and {MAX_TABLES}, not {self.tables}"),
            (self.transactions >= 1, f"transactions must be at least 1, not {self.transactions}"),
            (self.seed >= 0, f"seed must be 0 or greater, not {self.seed}"),
            (
                1 <= self.changes.first <= self.changes.last,
                f"changes must be a range from 1 or more, not {self.changes}",
            ),
            (
                0 <= self.value_sizes.first <= self.value_sizes.last,
                f"value_sizes must be a range from 0 bytes or more, not {self.value_sizes}",
            ),
            (
                all(0 <= part < math.inf for part in msgspec.structs.astuple(mix)),
                f"each frequency in mix must be a finite number of at least 0, not {mix}",
            ),
            (mix.insert > 0, "mix needs inserts, since only inserted rows can be updated or deleted"),
            (mix.delete <= mix.insert, "mix must not have more deletes than inserts"),
            (
                self.replica_identity != "nothing" or not mix.update + mix.delete,
                "a table with replica_identity nothing has no updates and deletes; set both to 0 in mix",
            ),
            (0 <= self.large <= 1, f"large must be between 0 and 1, not {self.large:g}"),
            (0 <= self.varied <= 1, f"varied must be between 0 and 1, not {self.varied:g}"),
            (
                not (self.patterns and self.large),
                "large must be 0 in a profile with patterns: the patterns set the size of transactions",
            ),
            (
                self.large_changes >= MIN_LARGE_CHANGES,
                f"large_changes must be at least {MIN_LARGE_CHANGES}, not {self.large_changes}",
            ),
            (
                size <= MAX_TRANSACTION_BYTES,
                f"a transaction of {most} changes with values of up to {self.value_sizes.last} bytes takes "
                f"about {size >> 20} MiB; the limit is {MAX_TRANSACTION_BYTES >> 20} MiB",
            ),
        ):
            if not holds:
                raise ValueError(text)

    @cached_property
    def server_major(self) -> int:
        """Major version of the PostgreSQL server."""
        return default_server(self.proto_version or LATEST_RELEASED) if self.server is None else self.server

    @cached_property
    def options(self) -> StreamOptions:
        """Stream options with which the client requests the stream."""
        named = {name: getattr(self, name) for name in StreamOptions.__struct_fields__}
        newest = newest_version(self.server_major)
        named["proto_version"] = self.proto_version or newest
        return StreamOptions(**named)

    @property
    def server_version(self) -> str:
        """Version of PostgreSQL that the output states, such as 18.4."""
        return server_version(self.server_major)

    @property
    def is_streamed(self) -> bool:
        """Whether large transactions are sent in stream blocks."""
        return self.streaming != "off" and self.large > 0

    @property
    def mean_message_bytes(self) -> float:
        """Approximate mean size of the workload's messages, in bytes."""
        return _MESSAGE_OVERHEAD_BYTES / 2 + 2 * self.value_sizes.mean

    @property
    def mean_transaction_messages(self) -> float:
        """Approximate mean number of messages of a transaction.

        A varied transaction (one with all kinds of messages) counts `_VARIED_MESSAGES` more than the others.
        """
        plain = 2 + (1 - self.large) * self.changes.mean + self.large * self.large_changes
        return plain + self.varied * _VARIED_MESSAGES

    @property
    def source(self) -> Source:
        """`Source` of a recording of the workload: synthetic names, and the stream options."""
        name = str(uuid5(NAMESPACE_URL, f"logicalrep:{self!r}"))
        return make_source(self.options, self.server_version, name)
