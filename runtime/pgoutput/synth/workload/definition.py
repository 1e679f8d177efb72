"""The definition of a workload: its size, mix of changes and stream options."""

from __future__ import annotations

import math
from typing import Final
from uuid import NAMESPACE_URL, uuid5

import msgspec

from pgoutput.messages import Streaming
from pgoutput.recording import Source
from pgoutput.stream import StreamDecoder
from pgoutput.versions import LATEST_RELEASED

MAX_TABLES: Final = 500
"""Maximum number of tables of a workload."""
MIN_LARGE_CHANGES: Final = 100
"""Minimum number of changes of a large transaction, enough for several stream blocks."""

MAX_TRANSACTION_BYTES: Final = 256 << 20
"""Maximum size of a transaction, in bytes. Each transaction is built in memory as a whole."""

_MESSAGE_OVERHEAD_BYTES: Final = 90
"""Approximate maximum size of a message without its text values, in bytes."""


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


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Definition of a large synthetic stream for load tests. The same definition gives the same stream.

    Raises:
        ValueError: A value is out of bounds, or the protocol version does not support `streaming`.
    """

    tables: int = 20
    """Number of tables."""
    transactions: int = 1_000
    """Number of transactions."""
    changes: Range = Range(10, 10)
    """Bounds of the number of changes in a transaction that is not large."""
    mix: Mix = Mix()
    """Relative frequencies of inserts, updates and deletes."""
    value_sizes: Range = Range(10, 50)
    """Bounds of the size of text values, in bytes. The size of values of other types is not configurable."""
    large: float = 0.001
    """Fraction of all transactions that are large, from 0 to 1. If `streaming` is `on` or `parallel`, large
    transactions are sent in stream blocks."""
    large_changes: int = 10_000
    """Number of changes in a large transaction."""
    rolled_back: float = 0.1
    """Fraction of large transactions and of their savepoints that are rolled back, from 0 to 1. Ignored if
    `streaming` is `off`, because servers then do not send rolled-back changes."""
    proto_version: int = LATEST_RELEASED
    """Version of the logical replication protocol."""
    streaming: Streaming = "off"
    """Whether large transactions are sent while in progress: `off`, `on` or `parallel`."""
    seed: int = 0
    """Seed of all random choices, 0 or greater."""

    def __post_init__(self) -> None:
        StreamDecoder(self.proto_version, streaming=self.streaming)
        mix = self.mix
        _require(
            1 <= self.tables <= MAX_TABLES, f"tables must be between 1 and {MAX_TABLES}, not {self.tables}"
        )
        _require(self.transactions >= 1, f"transactions must be at least 1, not {self.transactions}")
        _require(self.seed >= 0, f"seed must be 0 or greater, not {self.seed}")
        _require(1 <= self.changes.first <= self.changes.last, "changes must be a range of numbers from 1 up")
        _require(
            0 <= self.value_sizes.first <= self.value_sizes.last,
            "value_sizes must be a range of numbers from 0 up",
        )
        parts = (mix.insert, mix.update, mix.delete)
        _require(
            all(0 <= part < math.inf for part in parts), "the weights in mix must be finite and not negative"
        )
        _require(mix.insert > 0, "mix needs inserts, since only inserted rows can be updated or deleted")
        _require(mix.delete <= mix.insert, "mix must not have more deletes than inserts")
        for name in ("large", "rolled_back"):
            share = getattr(self, name)
            _require(0 <= share <= 1, f"{name} must be between 0 and 1, not {share:g}")
        _require(
            self.large_changes >= MIN_LARGE_CHANGES,
            f"large_changes must be at least {MIN_LARGE_CHANGES}, not {self.large_changes}",
        )
        most = max(self.changes.last, self.large_changes if self.large else 0, self.tables)
        size = most * (_MESSAGE_OVERHEAD_BYTES + 2 * self.value_sizes.last)
        _require(
            size <= MAX_TRANSACTION_BYTES,
            f"a transaction of {most} changes with values of up to {self.value_sizes.last} bytes takes about "
            f"{size >> 20} MiB; the limit is {MAX_TRANSACTION_BYTES >> 20} MiB",
        )

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
        """Mean number of messages of the workload's transactions."""
        return 2 + (1 - self.large) * self.changes.mean + self.large * self.large_changes

    @property
    def source(self) -> Source:
        """`Source` in the metadata of a recording of the workload: synthetic names, and stream options."""
        return Source(
            recording=str(uuid5(NAMESPACE_URL, f"pgoutput:{self!r}")),
            system_identifier="",
            server_version="",
            database="synth",
            slot="synth",
            publications=("synth",),
            proto_version=self.proto_version,
            options={} if self.streaming == "off" else {"streaming": self.streaming},
        )


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)
