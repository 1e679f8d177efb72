"""What `pgoutput synth` is asked for: a workload, of any size, that is the same for the same seed."""

from __future__ import annotations

import math
from typing import Final
from uuid import NAMESPACE_URL, uuid5

import msgspec

from pgoutput.messages import Streaming
from pgoutput.recording import Source
from pgoutput.stream import StreamDecoder
from pgoutput.versions import LATEST_RELEASED

MOST_TABLES: Final = 500
LEAST_LARGE: Final = 100
"""Changes of a large transaction: it comes in several blocks."""

TRANSACTION_BYTES: Final = 256 << 20
"""About what a transaction may have: it is made in memory as a whole."""

_OVERHEAD: Final = 90
"""Bytes of a message besides its longest texts, about."""


class Mix(msgspec.Struct, frozen=True):
    """How often the kinds of changes come, in proportion to each other."""

    insert: float = 6
    update: float = 3
    delete: float = 1


class Range(msgspec.Struct, frozen=True):
    """Numbers from the first to the last, each as often."""

    first: int
    last: int

    @property
    def mean(self) -> float:
        """Their mean."""
        return (self.first + self.last) / 2


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is done in a database.

    Raises:
        ValueError: There is no such workload.
    """

    tables: int = 20
    transactions: int = 1_000
    changes: Range = Range(10, 10)
    """Of a transaction."""
    mix: Mix = Mix()
    value_sizes: Range = Range(10, 50)
    """Bytes of text values. Numbers, times and the like are as long as they are."""
    large: float = 0.001
    """The share of transactions that are large. With `streaming` they come in blocks, while in progress."""
    large_changes: int = 10_000
    rolled_back: float = 0.1
    """The share of large transactions that are rolled back, and of savepoints in them; only with `streaming`,
    since servers do not send them without."""
    proto_version: int = LATEST_RELEASED
    streaming: Streaming = "off"
    seed: int = 0

    def __post_init__(self) -> None:
        StreamDecoder(self.proto_version, streaming=self.streaming)
        mix = self.mix
        _expect(1 <= self.tables <= MOST_TABLES, f"from 1 to {MOST_TABLES} tables, not {self.tables}")
        _expect(self.transactions >= 1, f"at least 1 transaction, not {self.transactions}")
        _expect(self.seed >= 0, f"a seed from 0 on, not {self.seed}")
        _expect(1 <= self.changes.first <= self.changes.last, "transactions have at least 1 change")
        _expect(0 <= self.value_sizes.first <= self.value_sizes.last, "values have at least 0 bytes")
        parts = (mix.insert, mix.update, mix.delete)
        _expect(all(0 <= part < math.inf for part in parts), "the parts of a mix are numbers from 0 on")
        _expect(mix.insert > 0, "a mix has inserts: what else could be updated or deleted")
        _expect(mix.delete <= mix.insert, "a mix has no more deletes than inserts: tables would be empty")
        for share in (self.large, self.rolled_back):
            _expect(0 <= share <= 1, f"a share is from 0 to 1, not {share:g}")
        _expect(self.large_changes >= LEAST_LARGE, f"a large transaction has at least {LEAST_LARGE} changes")
        most = max(self.changes.last, self.large_changes if self.large else 0, self.tables)
        size = most * (_OVERHEAD + 2 * self.value_sizes.last)
        _expect(
            size <= TRANSACTION_BYTES,
            f"a transaction of {most} changes with values of up to {self.value_sizes.last} bytes has about "
            f"{size >> 20} MB, more than {TRANSACTION_BYTES >> 20}",
        )

    @property
    def is_streamed(self) -> bool:
        """Whether large transactions come in blocks."""
        return self.streaming != "off" and self.large > 0

    @property
    def message_bytes(self) -> float:
        """Bytes of a message, about."""
        return _OVERHEAD / 2 + 2 * self.value_sizes.mean

    @property
    def transaction_messages(self) -> float:
        """Messages of a transaction, on the average."""
        return 2 + (1 - self.large) * self.changes.mean + self.large * self.large_changes

    @property
    def source(self) -> Source:
        """Where its stream comes from: no server, but one could have sent it."""
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


def _expect(right: bool, text: str) -> None:
    if not right:
        raise ValueError(text)
